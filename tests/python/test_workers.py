"""`sample` on workers of Dask: the bits of one process, also if a worker is killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import (
    PLAIN_ENVIRONMENT,
    assert_same,
    engine_is_chosen,
    make_net,
    save_weights,
    small_net,
)
from drawn_pictures import draw_pictures

distributed = pytest.importorskip("distributed", reason="Dask is not installed")
pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe import (  # noqa: E402
    BayesCaffeError,
    Mixture,
    Model,
    Rule,
    __version__,
    analyze,
    cli,
    load_draws,
    merge,
    open_images,
    predict,
    sample,
    stopping_rule,
)
from bayescaffe.infer import workers as module  # noqa: E402
from bayescaffe.infer.prediction import Prediction  # noqa: E402
from bayescaffe.stats.stopping import StoppingRule  # noqa: E402

pytestmark = pytest.mark.engine
BAYES = "kl_weight: 0.01 dataset_size: 330"
OWN = {"created", "seconds", "path"}
"""What one process and several tell differently."""


@pytest.fixture
def net(tmp_path, digits):
    return save_weights(tmp_path, small_net(digits, BAYES))


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "x.npz"


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def check_same(found, expected):
    assert_same(found.probabilities, expected.probabilities)
    assert np.array_equal(found.labels, expected.labels)
    assert found.meta.keys() - OWN == expected.meta.keys() - OWN
    for key in expected.meta.keys() - OWN:
        assert found.meta[key] == expected.meta[key], key


# ---- The same numbers


def test_a_cluster_gives_the_bits_of_one_process(net, out, cluster):
    expected = sample(Model(*net, seed=3), passes=50)
    found = sample(Model(*net, seed=3), passes=50, out=out, dask=cluster.scheduler_address)
    check_same(found, expected)
    assert files(out.parent) == [out.name]


def test_mixtures_and_pictures_by_relative_names(net, out, cluster, digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_net(tmp_path, small_net(digits, BAYES), seed=6).save("other.caffemodel")
    draw_pictures(Path("photos"), 8, list("012"))
    models = [Model("net.prototxt", name) for name in ("net.caffemodel", "other.caffemodel")]
    images = open_images("photos", invert=True)
    expected = sample(Mixture(models), images, 7)
    found = sample(Mixture(models), images, 7, out=out, dask=cluster.scheduler_address)
    check_same(found, expected)
    assert found.meta["names"] == expected.meta["names"] and len(found.labels) == 24


def test_adaptive_and_analytic_draws(net, out, cluster):
    model = Model(*net)
    full = sample(model, passes=30)
    # A rule that settles half of these images with the first draws.
    calibrated = stopping_rule(full, error=0.5)
    for threshold in np.linspace(1, -2, 61):
        rule = StoppingRule(**{**vars(calibrated), "threshold": float(threshold)})
        if rule.settles(full.probabilities[:4]).mean() >= 0.5:
            break
    dask = cluster.scheduler_address
    for how in ({"adaptive": rule}, {"passes": "analytic"}):
        expected = sample(model, **how)
        found = sample(model, **how, out=out, dask=dask)
        check_same(found, expected)
        assert found.draw_counts.tolist() == expected.draw_counts.tolist()
        for one, other in zip(found.later, expected.later, strict=True):
            assert one.first == other.first and np.array_equal(one.images, other.images)
            assert_same(one.probabilities, other.probabilities)
        paths = [out.with_name(f"{number}.npz") for number in range(2)]
        for path, images in zip(paths, (range(33), range(33, 100)), strict=True):
            sample(model, **how, image_range=images, out=path)
        joined = merge(paths)
        check_same(joined, expected)
        assert joined.draw_counts.tolist() == expected.draw_counts.tolist()
        if "adaptive" in how:
            assert len(set(expected.draw_counts.tolist())) > 2
            part = load_draws(paths[1])
            assert part.part == "images 33-99 of 100, draws 0-29 of 30"


def test_options_of_a_model_reach_the_workers(net, out, cluster, tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 255, (30, 12, 12), np.uint8))
    model = Model(*net, scale=0.01, mean=[7], output="out")
    labels = np.arange(30) % 4
    given = {"passes": 5, "labels": labels, "class_names": list("abcd")}
    expected = sample(model, tmp_path / "x.npy", **given)
    found = sample(model, tmp_path / "x.npy", **given, out=out, dask=cluster.scheduler_address)
    check_same(found, expected)
    plain = sample(Model(*net), tmp_path / "x.npy", 5).probabilities
    assert not np.array_equal(plain, found.probabilities)


def test_parts_can_be_kept(net, out, cluster, tmp_path):
    found = sample(
        Model(*net), passes=16, out=out, dask=cluster.scheduler_address, parts=tmp_path / "parts"
    )
    names = [f"images-0-99.draws-{2 * k}-{2 * k + 1}.npz" for k in range(8)]
    assert files(tmp_path / "parts") == sorted(names)
    paths = [tmp_path / "parts" / name for name in names]
    check_same(merge(paths), found)
    part = load_draws(paths[3])
    assert part.part == "images 0-99 of 100, draws 6-7 of 16"
    assert_same(part.probabilities, found.probabilities[6:8])
    assert_same(analyze(part).mean, found.probabilities[6:8].mean(axis=0, dtype=np.float64))


def test_tasks_have_each_draw_of_each_image_once():
    class Work:
        passes, source, keeps_draws_together = 100, range(0), False

        class model:
            classes = 10

    for images, passes, workers, tasks, largest in (
        (10_000, 100, 4, 20, 1000 * 50),  # ten blocks of images, halved for 16 tasks
        (100_000, 100, 4, 100, 1000 * 100),  # enough without
        (5, 100, 2, 8, 5 * 13),
        (1, 3, 8, 3, 1),
        (1500, 1, 8, 2, 750),
    ):
        Work.source, Work.passes = range(images), passes
        found = module._tasks(Work, workers)
        assert len(found) == tasks
        assert max(len(one) * len(other) for one, other in found) == largest
        seen = np.zeros((images, passes), int)
        for one, other in found:
            seen[one.start : one.stop, other.start : other.stop] += 1
        assert (seen == 1).all()
    Work.keeps_draws_together = True
    for images, workers, tasks in ((10_000, 1, 10), (10_000, 4, 16), (3, 4, 3)):
        Work.source = range(images)
        found = module._tasks(Work, workers)
        assert len(found) == tasks and {draws for _, draws in found} == {range(Work.passes)}
        assert [image for one, _ in found for image in one] == list(range(images))
    Work.source, Work.passes, Work.model.classes = range(1000), 100, 10_000
    for Work.keeps_draws_together in (False, True):
        assert all(len(one) * len(other) * 40_000 <= 2**28 for one, other in module._tasks(Work, 1))


# ---- Predictions


def told(model, images, **options):
    """Predictions, and the errors of pictures that cannot be read."""
    errors = []
    found = predict(model, images, on_error=lambda *both: errors.append(both), **options)
    return found, [(name, str(error)) for name, error in errors]


def assert_same_predictions(found, expected):
    """Bit for bit; with a BLAS, whose sums depend on the batch, but for rounding."""
    if engine_is_chosen():
        assert found == expected
    assert [(one.image, one.draws) for one in found] == [(one.image, one.draws) for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)
        assert np.array(one.intervals) == pytest.approx(np.array(other.intervals), abs=1e-5)


def test_predictions_are_those_of_one_process(net, cluster, digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw_pictures(Path("photos"), 8, list("012"))
    bad = sorted(Path("photos/1").iterdir())[3]
    bad.write_bytes(b"no picture")
    Path("empty").mkdir()
    images = ["photos", "empty", "none.png", Path("photos/0")]
    make_net(tmp_path, small_net(digits, BAYES), seed=6).save("other.caffemodel")
    two = Mixture([Model(net[0], name) for name in (net[1], "other.caffemodel")])
    rule = stopping_rule(sample(Model(*net), passes=30), error=0.5)
    for model, options in (
        (Model(*net, seed=3), {"passes": 50, "level": 0.9, "rule": Rule(0.3, 0.3)}),
        (Model(*net), {"passes": "analytic", "class_names": list("abcd"), "invert": True}),
        (Model(*net), {"adaptive": rule}),
        (two, {"passes": 7, "interval": "hdi"}),
    ):
        expected = told(model, images, **options)
        found = told(model, images, **options, dask=cluster.scheduler_address)
        assert_same_predictions(found[0], expected[0])
        assert found[1] == expected[1]
    assert len(expected[0]) == 23 + 8
    assert [name for name, _ in expected[1]] == ["empty", str(bad), "none.png"]
    with pytest.raises(BayesCaffeError, match="empty: "):
        predict(two, images, 5, dask=cluster.scheduler_address)
    with pytest.raises(BayesCaffeError, match="images: workers open images by name; give image f"):
        predict(two, [b"x"], 5, workers=2)
    with pytest.raises(BayesCaffeError, match="workers=0: at least one is needed"):
        predict(two, "photos", 5, workers=0)


def test_a_killed_worker_of_predict_is_replaced(net, cluster, tmp_path):
    draw_pictures(tmp_path / "photos", 8, list("012"))
    model = Model(*net)
    expected = predict(model, tmp_path / "photos", 20_000)
    found = []
    thread = threading.Thread(
        target=lambda: found.append(
            predict(model, tmp_path / "photos", 20_000, dask=cluster.scheduler_address)
        )
    )
    thread.start()
    deadline = time.monotonic() + 60
    while not any(ts.processing_on for ts in list(cluster.scheduler.tasks.values())):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(next(iter(cluster.workers.values())).process.pid, signal.SIGKILL)
    thread.join()
    assert_same_predictions(*found, expected)


def test_the_command_predicts_on_workers(net, tmp_path, capsys):
    draw_pictures(tmp_path / "photos", 2, list("012"))
    words = ["predict", *map(str, net), str(tmp_path / "photos"), "--passes", "9", "--json"]
    assert cli.main(words) == 0
    expected = [Prediction(**one) for one in json.loads(capsys.readouterr().out)["images"]]
    assert cli.main([*words, "--workers", "2"]) == 0
    found = [Prediction(**one) for one in json.loads(capsys.readouterr().out)["images"]]
    assert_same_predictions(found, expected)


# ---- What goes wrong


def busy_worker(folder, pids):
    """One of the processes that has a file in the folder open, when there is one."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for pid in pids():
            with contextlib.suppress(OSError):
                for link in Path(f"/proc/{pid}/fd").iterdir():
                    if os.readlink(link).startswith(f"{folder}/"):
                        return pid
        time.sleep(0.005)
    raise AssertionError(f"no process works in {folder}")


def test_a_bad_picture_is_the_error_of_one_process(net, out, cluster, tmp_path):
    draw_pictures(tmp_path / "photos", 8, list("012"))
    bad = sorted((tmp_path / "photos" / "1").iterdir())[3]
    bad.write_bytes(b"no picture")
    said = []
    for where in ({}, {"dask": cluster.scheduler_address}):
        with pytest.raises(BayesCaffeError) as error:
            sample(Model(*net), tmp_path / "photos", 5, out=out, **where)
        said.append(str(error.value))
    assert said[0] == said[1] == f"{bad}: not an image, or of a format that is not known"
    assert files(out.parent) == []


def test_workers_that_die_again_and_again_are_told(net, out, cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster.scheduler, "allowed_failures", 0)
    parts = tmp_path / "parts"

    def kill():
        pids = [worker.process.pid for worker in cluster.workers.values()]
        os.kill(busy_worker(parts, lambda: pids), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(
        BayesCaffeError, match="workers died again and again while they computed im"
    ):
        sample(Model(*net), passes=4000, out=out, dask=cluster.scheduler_address, parts=parts)
    killer.join()
    assert files(out.parent) == files(parts) == []


def test_what_workers_cannot_do_is_refused(net, out, digits, tmp_path):
    model = Model(*net)
    array = np.zeros((3, 12, 12), np.uint8)
    for arguments, message in (
        ({"images": array, "workers": 2}, "images: workers open images by name; give an LMDB"),
        ({"draw_range": range(5), "workers": 2}, "draw_range: does not work with workers, which"),
        ({"workers": 2, "dask": "x"}, "dask: does not work with workers"),
        ({"workers": 0}, "workers=0: at least one is needed"),
        ({"parts": tmp_path}, "parts: needs workers or a Dask cluster"),
        ({"workers": 2, "out": None}, "workers: needs a file to write, out"),
    ):
        with pytest.raises(BayesCaffeError, match=message):
            sample(model, **{"out": out, "passes": 5, **arguments})


def test_no_scheduler_and_no_dask_are_told(net, out, capsys, monkeypatch):
    command = ["sample", *map(str, net), "--out", str(out)]
    monkeypatch.setattr(module, "CONNECT_SECONDS", 0.2)
    assert cli.main([*command, "--dask", "tcp://127.0.0.1:9"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("bayescaffe: error: --dask tcp://127.0.0.1:9: no scheduler answers: ")
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert cli.main([*command, "--workers", "2"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("bayescaffe: error: --workers 2 needs the Python package distributed")
    assert said.count("\n") == 1
    assert files(out.parent) == []


def test_another_version_is_told_before_the_work(net, out, cluster, monkeypatch):
    monkeypatch.setattr(module, "__version__", "9.9")
    # The scheduler of these tests is this process; the workers are not.
    message = f"dask='{cluster.scheduler_address}': has bayescaffe {__version__}, but this is 9.9"
    with pytest.raises(BayesCaffeError, match=message):
        sample(Model(*net), passes=5, out=out, dask=cluster.scheduler_address)
    assert files(out.parent) == []


# ---- Workers of its own


def test_each_worker_has_its_share_of_the_cores(monkeypatch):
    monkeypatch.setattr(module, "cores", lambda: 5)

    def look():
        interrupt = signal.getsignal(signal.SIGINT)
        return os.environ["OMP_NUM_THREADS"], "caffe" in sys.modules, interrupt == signal.SIG_IGN

    with module._cluster(distributed, 2, None) as client:
        assert list(client.run(look).values()) == [("2", False, True)] * 2


@contextlib.contextmanager
def command(*arguments):
    """`bayescaffe sample` in a group of processes of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bayescaffe", "sample", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=PLAIN_ENVIRONMENT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def works_in(process, out):
    """The process id of a worker of a command that writes a part."""

    def children():
        tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
        return [pid for task in tasks for pid in task.read_text().split()]

    deadline = time.monotonic() + 60
    while not (folders := list(out.parent.glob(".*.parts"))):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    return int(busy_worker(folders[0], children))


def test_a_killed_worker_is_replaced_and_the_bits_are_the_same(net, out):
    with command(*net, "--passes", 8000, "--workers", 2, "--out", out) as process:
        os.kill(works_in(process, out), signal.SIGKILL)
        printed, said = process.communicate(timeout=120)
    assert said == "1 worker died; the tasks were computed again\n"
    assert printed.startswith(f"{out}: 8,000 draws of 100 images, 4 classes\n")
    assert " s of all workers together, " in printed
    check_same(load_draws(out), sample(Model(*net), passes=8000))
    assert files(out.parent) == [out.name]


def test_ctrl_c_ends_all_and_leaves_nothing(net, out):
    with command(*net, "--passes", 100_000, "--workers", 2, "--out", out) as process:
        worker = works_in(process, out)
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "bayescaffe: interrupted\n")
    assert process.returncode == 130
    assert not Path(f"/proc/{worker}").exists()
    assert files(out.parent) == []


def test_what_a_killed_command_left_is_removed(out):
    left = out.parent / f".x.npz.{1:016x}.parts"
    left.mkdir()
    (left / "part.npz").write_bytes(b"x")
    with module.scratch_folder(out) as folder:
        assert files(out.parent) == [folder.name]
        with module.scratch_folder(out) as another:
            assert files(out.parent) == sorted([folder.name, another.name])
    assert files(out.parent) == []
