"""Parts of draws: what `sample` gives for some images and draws, and what `merge` makes of them."""

import json
import os
import re
import subprocess
import tracemalloc

import numpy as np
import pytest
from bayescaffe import BayesCaffeError, analyze, cli, load_draws, merge, save_draws, stopping_rule
from bayescaffe.common.npz import StoredArray
from bayescaffe.stats.draws import Block, Draws, write_draws
from bayescaffe.stats.merging import open_draws
from conftest import REPO, assert_same, make_net, save_weights, small_net
from drawn_pictures import draw_pictures

RANDOM = np.random.default_rng(0)
WHOLE = RANDOM.dirichlet(np.ones(3), (6, 10)).astype(np.float32)
LABELS = RANDOM.integers(0, 3, 10)
META = {
    "seed": 7,
    "net": "net.prototxt",
    "weights": "net.caffemodel",
    "weights_sha256": "aa",
    "data": "/data",
    "data_sha256": "bb",
    "passes": 6,
    "version": "1",
    "created": "2026-01-01",
    "class_names": ["a", "b", "c"],
    "names": [f"{number}.png" for number in range(10)],
    "mc_dropout": False,
    "seconds": 2.0,
}
TWO = {
    "models": [{"weights": "a", "weights_sha256": "aa"}, {"weights": "b", "weights_sha256": "bb"}],
    "model_of_draw": [0, 1, 0, 1, 0, 1],
}


def write(path, images=range(10), draws=range(6), **changes):
    """A file with that part of WHOLE. A change of None leaves the field out."""
    meta = {**META, **changes}
    rows, columns = slice(images.start, images.stop), slice(draws.start, draws.stop)
    if meta.get("names"):
        meta["names"] = meta["names"][rows]
    if meta.get("model_of_draw"):
        meta["model_of_draw"] = meta["model_of_draw"][columns]
    part = {"first_draw": draws.start, "first_image": images.start, "all_images": 10}
    meta = {"part": part, **meta}
    save_draws(
        path,
        WHOLE[columns, rows],
        LABELS[rows],
        {name: value for name, value in meta.items() if value is not None},
    )
    return path


def halves(folder, first=None, second=None):
    """The first and the last three draws."""
    return [
        write(folder / "a.npz", draws=range(3), **(first or {})),
        write(folder / "b.npz", draws=range(3, 6), **(second or {})),
    ]


BLOCKS = {
    "draws": [(range(10), range(0, 2)), (range(10), range(2, 6))],
    "images": [(range(0, 4), range(6)), (range(4, 10), range(6))],
    "both": [(a, b) for a in (range(5), range(5, 10)) for b in (range(3), range(3, 6))],
    "ragged": [(range(4), range(6)), (range(4, 10), range(1)), (range(4, 10), range(1, 6))],
    "one": [(range(10), range(6))],
}


# ---- What belongs together


@pytest.mark.parametrize("blocks", BLOCKS.values(), ids=BLOCKS)
@pytest.mark.parametrize("more", [{}, TWO], ids=["one model", "two models"])
def test_parts_in_any_order_are_the_whole(tmp_path, blocks, more):
    paths = [
        write(tmp_path / f"{number}.npz", *block, created=f"2026-01-0{number + 1}", **more)
        for number, block in enumerate(blocks)
    ]
    for order in (paths, paths[::-1]):
        for out in (None, tmp_path / "all.npz"):
            found = merge(order, out)
            assert np.array_equal(found.probabilities, WHOLE)
            assert np.array_equal(found.labels, LABELS)
            meta = {name: value for name, value in found.meta.items() if name != "path"}
            changed = {"created": f"2026-01-0{len(paths)}", "seconds": 2.0 * len(paths)}
            assert meta == {**META, **more, **changed}
    assert analyze(found).warnings == analyze(load_draws(tmp_path / "all.npz")).warnings
    assert load_draws(tmp_path / "all.npz").part is None


def test_later_draws_extend_a_complete_file(tmp_path):
    first = write(tmp_path / "a.npz", draws=range(4), passes=4, part=None)
    second = write(tmp_path / "b.npz", draws=range(4, 6))
    found = merge([first, second])
    assert np.array_equal(found.probabilities, WHOLE) and found.meta["passes"] == 6


def test_paths_may_differ_if_hashes_do_not(tmp_path):
    others = {"net": "/x/net", "weights": "/x/w", "data": "/x/data"}
    assert merge(halves(tmp_path, second=others)).meta["weights"] == "net.caffemodel"
    with pytest.raises(BayesCaffeError, match="b.npz: .* its data is '/x/data', not '/data'"):
        merge(halves(tmp_path, {"data_sha256": None}, {**others, "data_sha256": None}))


def test_memory_is_bounded_and_a_large_result_is_mapped(tmp_path, monkeypatch):
    monkeypatch.setattr("bayescaffe.common.npz.IN_MEMORY", 2**23)  # less than the result
    array = np.memmap(tmp_path / "x", np.float32, "w+", shape=(10, 20_000, 10))  # 8 MB
    array[:] = np.arange(10, dtype=np.float32)[:, np.newaxis, np.newaxis]
    paths = []
    for first in (0, 10):
        paths.append(tmp_path / f"{first}.npz")
        part = {"first_draw": first, "first_image": 0, "all_images": 20_000}
        save_draws(paths[-1], array, None, {"passes": 20, "part": part})
    tracemalloc.start()
    found = merge(paths, tmp_path / "all.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(found.probabilities.base, np.memmap)
    assert not isinstance(load_draws(paths[0]).probabilities.base, np.memmap)
    assert np.array_equal(found.probabilities[:, 7, 3], np.arange(20) % 10)
    assert peak < 5e6


# ---- What does not


def test_what_is_missing_is_named(tmp_path):
    a, b = halves(tmp_path)
    c = write(tmp_path / "c.npz", range(2, 5), range(3, 6))
    for paths, missing in (
        ([a], "images 0-9 x draws 3-5"),
        ([b], "images 0-9 x draws 0-2"),
        ([a, c], "images 0-1 x draws 3-5, images 5-9 x draws 3-5"),
        ([c], "images 0-1 x draws 0-5, images 2-4 x draws 0-2, images 5-9 x draws 0-5"),
    ):
        with pytest.raises(BayesCaffeError) as error:
            merge(paths, tmp_path / "all.npz")
        assert str(error.value) == (
            "not all parts are there: of 10 images x 6 draws, these are missing: " + missing
        )
    corners = [
        write(tmp_path / f"{n}.npz", range(n, n + 1), range(m, m + 1))
        for n, m in enumerate((1, 3, 1, 3, 1))
    ]
    with pytest.raises(BayesCaffeError, match=r"images 2-2 x draws 0-0, and 6 more$"):
        merge(corners)
    assert not (tmp_path / "all.npz").exists()


def test_what_is_there_twice_is_named(tmp_path):
    a, b = halves(tmp_path)
    c = write(tmp_path / "c.npz", range(2, 5), range(2, 4))
    with pytest.raises(BayesCaffeError, match=r"a.npz and \S+c.npz both have images 2-4 x draws 2"):
        merge([c, b, a])
    with pytest.raises(BayesCaffeError, match=r"a.npz and \S+a.npz both have images 0-9 x draws 0"):
        merge([a, b, a])


@pytest.mark.parametrize(
    "field, value",
    [
        ("seed", 8),
        ("weights_sha256", "cc"),
        ("data_sha256", "cc"),
        ("class_names", ["a", "b", "x"]),
        ("mc_dropout", True),
        ("analytic", True),
        ("version", "2"),
        ("channels", "rgb"),
    ],
)
def test_what_differs_is_named(tmp_path, field, value):
    message = rf"b.npz: is no part of .*a.npz: its {field} is {re.escape(repr(value))}, not"
    with pytest.raises(BayesCaffeError, match=message):
        merge(halves(tmp_path, second={field: value}))


def test_other_models_shapes_labels_and_names_are_refused(tmp_path):
    changed = [TWO["models"][0], {"weights": "b", "weights_sha256": "cc"}]
    with pytest.raises(BayesCaffeError, match="b.npz: .* its models is"):
        merge(halves(tmp_path, TWO, {**TWO, "models": changed}))
    first = write(tmp_path / "a.npz", range(5))
    part = {"first_draw": 0, "first_image": 5, "all_images": 10}
    meta = {**META, "part": part, "names": META["names"][5:]}
    for probabilities, labels, change, message in (
        (WHOLE[:, 5:, :2], LABELS[5:], {}, "number of classes is 2, not 3"),
        (WHOLE[:, 5:], None, {}, "having labels is False, not True"),
        (WHOLE[:, 5:], LABELS[5:], {"names": None}, "having names is False, not True"),
        (WHOLE[:, 5:], LABELS[5:], {"part": {**part, "all_images": 11}}, "all images is 11, not"),
        (WHOLE[:, 5:], LABELS[5:], {"names": ["x"]}, "b.npz: 1 names in its meta, expected 5"),
    ):
        save_draws(tmp_path / "b.npz", probabilities, labels, {**meta, **change})
        with pytest.raises(BayesCaffeError, match=message):
            merge([first, tmp_path / "b.npz"], tmp_path / "all.npz")
    assert not (tmp_path / "all.npz").exists()


def test_labels_and_names_of_an_image_must_agree(tmp_path):
    a, b = halves(tmp_path)
    part = {"first_draw": 3, "first_image": 0, "all_images": 10}
    save_draws(b, WHOLE[3:], (LABELS + 1) % 3, {**META, "part": part})
    said = f"labels of number 0 is {(LABELS[0] + 1) % 3}, but {LABELS[0]} in another part"
    with pytest.raises(BayesCaffeError, match=f"b.npz: {said}"):
        merge([a, b])
    with pytest.raises(BayesCaffeError, match="b.npz: names of number 9 is 'x', but '9.png' in"):
        merge(halves(tmp_path, second={"names": [*META["names"][:9], "x"]}))


@pytest.mark.parametrize(
    "part, passes, message",
    [
        (3, 6, "'part' in its meta is 3, expected an object with the numbers first_draw, first_i"),
        ({"first_draw": 0}, 6, "'part' in its meta is {'first_draw': 0}, expected an object"),
        ({"first_draw": -1, "first_image": 0, "all_images": 10}, 6, "'part' in its meta is {'firs"),
        (
            {"first_draw": 1, "first_image": 0, "all_images": 10},
            6,
            "'passes' in its meta is 6, but",
        ),
        ({"first_draw": 0, "first_image": 0, "all_images": 10}, None, "'passes' in its meta is No"),
        (
            {"first_draw": 0, "first_image": 9, "all_images": 10},
            6,
            "'all_images' in its meta is 10",
        ),
        ({"first_draw": True, "first_image": 0, "all_images": 10}, 6, "'part' in its meta is {'fi"),
    ],
)
def test_wrong_parts_are_refused(tmp_path, part, passes, message):
    save_draws(tmp_path / "x.npz", WHOLE, None, {"part": part, "passes": passes})
    for read in (load_draws, lambda path: merge([path])):
        with pytest.raises(BayesCaffeError, match=f"x.npz: not a draws file, {re.escape(message)}"):
            read(tmp_path / "x.npz")


def test_files_that_cannot_be_merged(tmp_path):
    a, b = halves(tmp_path)
    before = a.read_bytes()
    with pytest.raises(BayesCaffeError, match=r"out=.*a.npz': is one of the parts"):
        merge([a, b], a)
    assert a.read_bytes() == before
    with pytest.raises(BayesCaffeError, match="at least one draws file is needed"):
        merge([])
    with pytest.raises(FileNotFoundError, match="there is no directory .*none"):
        merge([a, b], tmp_path / "none" / "all.npz")
    content = bytearray(b.read_bytes())
    content[content.index(WHOLE[4, 4].tobytes())] ^= 1
    b.write_bytes(content)
    with pytest.raises(BayesCaffeError, match="b.npz: the array 'probabilities' is damaged"):
        merge([a, b], tmp_path / "all.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "b.npz"]


# ---- Parts of adaptive sampling


def write_adaptive(path, images, counts, first=2):
    """A part of WHOLE in which images have 2, 4 or 6 draws; `first` of them are in all."""
    rows, counts = slice(images.start, images.stop), counts[images.start : images.stop]
    later = [
        Block(start, np.flatnonzero(counts > start), WHOLE[start:stop, rows][:, counts > start])
        for start, stop in ((first, 4), (4, 6))
        if (counts > start).any()
    ]
    part = {"first_draw": 0, "first_image": images.start, "all_images": 10}
    meta = {**META, "names": META["names"][rows], "part": part, "stopping_rule": {"passes": 6}}

    def fill(array):
        array[...] = WHOLE[:first, rows]
        return Draws(array, LABELS[rows], meta, tuple(later))

    write_draws(path, (first, len(images), 3), fill)
    return path


def test_parts_of_adaptive_sampling_are_the_whole(tmp_path):
    counts = np.array([2, 4, 2, 2, 2, 6, 2, 4, 6, 2])
    blocks = (range(0, 2), range(2, 5), range(5, 10))  # nothing is left for a second stage in one
    paths = [
        write_adaptive(tmp_path / f"{number}.npz", images, counts)
        for number, images in enumerate(blocks)
    ]
    expected = load_draws(write_adaptive(tmp_path / "whole", range(10), counts))
    for out in (None, tmp_path / "all.npz"):
        found = merge(paths[::-1], out)
        assert found.draw_counts.tolist() == counts.tolist() and found.part is None
        assert np.array_equal(found.of_images(0, 10), expected.of_images(0, 10), equal_nan=True)
        assert [block.first for block in found.later] == [2, 4]
        assert np.array_equal(found.labels, LABELS) and found.meta["names"] == META["names"]
    assert analyze(paths).summary() == analyze(found).summary()
    with pytest.raises(BayesCaffeError, match="are missing: images 2-4 x draws 0-5"):
        merge([paths[0], paths[2]])
    write_adaptive(paths[1], blocks[1], counts + 2, first=4)
    with pytest.raises(BayesCaffeError, match="1.npz: has other stages of draws than .*0.npz"):
        merge(paths)


# ---- Parts that stay parts


@pytest.mark.parametrize("blocks", BLOCKS.values(), ids=BLOCKS)
def test_the_figures_of_parts_are_those_of_the_whole(tmp_path, blocks, monkeypatch):
    monkeypatch.setattr("bayescaffe.stats.draws.PART_NUMBERS", 6 * 3 * 4)  # four images at a time
    paths = [write(tmp_path / f"{n}.npz", *block, **TWO) for n, block in enumerate(blocks)]
    whole = write(tmp_path / "whole", **TWO)  # not a name that a folder of parts is searched for
    expected = analyze(whole)
    for parts in (paths, paths[::-1], tmp_path):
        found = analyze(parts)
        assert found.summary() == expected.summary() and found.names == expected.names
        for name in ("mean", "lower", "upper", "epistemic", "between_models", "wrong_draws"):
            assert np.array_equal(getattr(found, name), getattr(expected, name)), name


def test_no_more_than_a_few_images_of_parts_are_in_memory(tmp_path):
    paths, images, draws = [], 20_000, 5
    array = np.memmap(tmp_path / "x", np.float32, "w+", shape=(draws, images // 2, 20))
    array[:] = 1 / 20
    for first_draw in range(0, 20, draws):
        for first_image in (0, images // 2):
            part = {"first_draw": first_draw, "first_image": first_image, "all_images": images}
            paths.append(tmp_path / f"{first_draw}-{first_image}.npz")
            save_draws(paths[-1], array, None, {"passes": 20, "part": part})
    read = []

    def spy(self, start, stop, columns=StoredArray.columns):
        read.append(stop - start)
        return columns(self, start, stop)

    whole = open_draws(paths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoredArray, "columns", spy)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for _, chunk in whole.parts():
            assert chunk.nbytes <= 2**20 and chunk.shape[0] == 20
        peak = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()
    assert sum(read) == images * 4 and max(read) * 20 * 20 <= 2**18
    assert peak < 5e6  # the whole has 32 MB, and one part 4
    assert len(whole.blocks[0].stored._files._open) == 4  # the others are closed


def test_the_command_analyses_parts(tmp_path, capsys):
    paths = [str(path) for path in halves(tmp_path)]
    whole = str(write(tmp_path / "whole", part=None))
    said = []
    for words in ([whole], paths, [str(tmp_path)]):
        assert cli.main(["analyze", *words, "--json", "--csv", str(tmp_path / "x.csv")]) == 0
        found = json.loads(capsys.readouterr().out)
        said.append({**found, "draws_file": None, "csv": (tmp_path / "x.csv").read_text()})
        named = found["draws_file"]
        assert named == (f"{paths[0]} and 1 more" if len(words) == 2 else words[0])
    assert said[0] == said[1] == said[2]
    assert cli.main(["analyze", *paths, "--csv", paths[1]]) == 1
    assert f"--csv {paths[1]}: is already used for another file" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert cli.main(["analyze", str(tmp_path / "empty")]) == 1
    assert "empty: a folder without draws files (*.npz)" in capsys.readouterr().err


# ---- A part on its own


def test_a_part_can_be_analysed_and_says_what_it_is(tmp_path):
    path = write(tmp_path / "x.npz", range(4, 10), range(2, 6))
    draws, found = load_draws(path), analyze(path)
    assert np.array_equal(found.predicted, WHOLE[2:, 4:].mean(axis=0).argmax(axis=-1))
    said = "images 4-9 of 10, draws 2-5 of 6"
    assert f"only a part: {said}; `bayescaffe merge` joins parts" in found.warnings
    assert f"  part: {said}" in repr(draws)
    with pytest.raises(BayesCaffeError, match="x.npz: begins with draw 2; a stopping rule needs"):
        stopping_rule(path)
    bad = WHOLE[2:, 4:].copy()
    bad[1, 3] = 2
    save_draws(path, bad, None, {key: value for key, value in draws.meta.items() if key != "path"})
    with pytest.raises(BayesCaffeError, match="draw 3 of image 7 is not probabilities"):
        analyze(path)


def test_xarray_has_the_names_of_draws_and_images(tmp_path):
    pytest.importorskip("xarray")
    array = load_draws(write(tmp_path / "x.npz", range(4, 10), range(2, 6), names=None)).to_xarray()
    assert np.array_equal(array.sel(draw=5, image=9), WHOLE[5, 9])


# ---- The commands


def test_the_command_merges(tmp_path, capsys):
    paths = list(map(str, halves(tmp_path)))
    out = str(tmp_path / "all.npz")
    assert cli.main(["merge", *paths, "--out", out]) == 0
    said = f"{out}: 6 draws of 10 images, 3 classes, from 2 files\n"
    assert capsys.readouterr().out == said
    assert np.array_equal(load_draws(out).probabilities, WHOLE)
    assert cli.main(["merge", *paths, "--out", out, "--json"]) == 0
    expected = {"out": out, "parts": 2, "draws": 6, "images": 10, "classes": 3}
    assert json.loads(capsys.readouterr().out) == expected
    assert cli.main(["merge", paths[0], "--out", out]) == 1
    assert capsys.readouterr().err.endswith("are missing: images 0-9 x draws 3-5\n")
    assert cli.main(["merge", *paths, "--out", paths[0]]) == 1
    assert f"error: --out {paths[0]}: is one of the parts" in capsys.readouterr().err


def test_the_slurm_script_has_each_draw_of_each_image_once(tmp_path):
    script = REPO / "examples/slurm/sample.sh"
    tool = tmp_path / "bayescaffe"
    tool.write_text('#!/bin/sh\nfor word; do printf "%s\\n" "$word"; done\n')
    tool.chmod(0o755)
    first, last = re.search(r"--array=(\d+)-(\d+)", script.read_text()).groups()
    seen = np.zeros((10_000, 100), int)
    names = set()
    for task in range(int(first), int(last) + 1):
        environment = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "SLURM_ARRAY_TASK_ID": str(task),
            "SLURM_CPUS_PER_TASK": "4",
        }
        words = subprocess.check_output(["bash", script], env=environment, text=True).splitlines()
        args = cli.build_parser().parse_args(words)
        rows, draws = args.image_range, args.draw_range
        seen[rows.start : rows.stop, draws.start : draws.stop] += 1
        names.add(args.out)
    assert (seen == 1).all() and len(names) == 20
    (command,) = re.findall(r'--wrap "bayescaffe (.+)"', script.read_text())
    assert cli.build_parser().parse_args(command.split()).out.name == "all.npz"


BAYES = "kl_weight: 0.01 dataset_size: 330"
DROPOUT = """layer { name: "drop" type: "Dropout" bottom: "hidden" top: "hidden"
                     dropout_param { dropout_ratio: 0.5 } }"""


@pytest.fixture
def net(tmp_path, digits):
    """A net and two caffemodels of it."""
    pytest.importorskip("caffe", reason="pycaffe is not built")
    text = small_net(digits, BAYES, DROPOUT)
    _, weights = save_weights(tmp_path, text)
    other = tmp_path / "other.caffemodel"
    make_net(tmp_path, text, seed=6).save(str(other))
    return tmp_path / "net.prototxt", weights, other


def same_facts(one, two):
    """Whether two metas agree, but for when and how fast."""
    own = {"created", "seconds", "path"}
    return {k: v for k, v in one.items() if k not in own} == {
        k: v for k, v in two.items() if k not in own
    }


@pytest.mark.engine
@pytest.mark.parametrize("kind", ["Bayesian", "dropout", "mixture", "pictures"])
def test_parts_have_the_bits_of_the_whole(net, tmp_path, kind):
    from bayescaffe import Mixture, Model, sample

    path, *weights = net
    options, images, count = {"mc_dropout": kind == "dropout"}, None, 100
    if kind == "pictures":
        draw_pictures(tmp_path / "photos", 8, list("012"))
        images, count = tmp_path / "photos", 24
    model = Model(path, weights[0], **options)
    if kind == "mixture":
        model = Mixture([model, Model(path, weights[1])])
    whole = sample(model, images, 7)
    parts = []
    for rows in (range(0, count // 3), range(count // 3, count)):
        for draws in (range(0, 3), range(3, 7)):
            out = tmp_path / f"{rows.start}-{draws.start}.npz"
            part = sample(model, images, 7, image_range=rows, draw_range=draws, out=out)
            expected = whole.probabilities[draws.start : draws.stop, rows.start : rows.stop]
            assert_same(part.probabilities, expected)
            assert np.array_equal(part.labels, whole.labels[rows.start : rows.stop])
            assert (part.image_range, part.draw_range, part.whole) == (rows, draws, (7, count))
            if kind == "mixture":
                assert part.meta["model_of_draw"] == [draw % 2 for draw in draws]
            if kind == "pictures":
                assert part.meta["names"] == whole.meta["names"][rows.start : rows.stop]
            parts.append(out)
    found = merge(parts[::-1], tmp_path / "all.npz")
    assert_same(found.probabilities, whole.probabilities)
    assert np.array_equal(found.labels, whole.labels)
    assert same_facts(found.meta, whole.meta)


def test_errors_of_a_part_name_the_image_of_the_whole(net, digits):
    from bayescaffe import Model, sample

    model = Model(*net[:2])
    pixels = np.zeros((9, 1, 12, 12), np.float32)
    pixels[6] = np.nan
    with pytest.raises(BayesCaffeError, match="array: image 6: has pixels that are no numbers"):
        sample(model, pixels, 2, image_range=range(5, 9))
    labels = np.array([0, 0, 0, 0, 0, 0, 0, 9, 0])
    with pytest.raises(BayesCaffeError, match="array: image 7: label 9 is not within"):
        sample(model, np.zeros_like(pixels), 2, labels=labels, image_range=range(5, 9))


def test_ranges_that_are_none(net):
    from bayescaffe import Model, sample

    model = Model(*net[:2])
    for arguments, message in (
        ({"image_range": range(90, 101)}, "image_range: 90-100 is not within 0-99, the images"),
        (
            {"draw_range": range(100, 110)},
            "draw_range: 100-109 is not within 0-99, the draws; passe",
        ),
        ({"draw_range": range(5, 5)}, r"draw_range=range\(5, 5\): expected a range such as"),
        ({"draw_range": range(0, 9, 2)}, r"draw_range=range\(0, 9, 2\): expected a range such as"),
        ({"image_range": (0, 5)}, r"image_range=\(0, 5\): expected a range such as"),
        (
            {"draw_range": range(5), "adaptive": "x"},
            "adaptive: does not work with draw_range, because",
        ),
        (
            {"draw_range": range(5), "passes": "analytic"},
            "passes='analytic': does not work with dr",
        ),
    ):
        with pytest.raises(BayesCaffeError, match=message):
            sample(model, **arguments)


def test_the_command_samples_a_part(net, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ["sample", *map(str, net[:2]), "--passes", "8"]
    assert cli.main([*words, "--images", "10-59", "--draws", "2-5"]) == 0
    said = capsys.readouterr().out.splitlines()[:2]
    name = "net.images-10-59.draws-2-5.draws.npz"
    assert said == [
        f"{name}: 4 draws of 50 images, 4 classes",
        "part: images 10-59 of 100, draws 2-5 of 8",
    ]
    assert cli.main([*words, "--out", "whole.npz"]) == 0
    whole = load_draws("whole.npz").probabilities
    assert_same(load_draws(name).probabilities, whole[2:6, 10:60])
    capsys.readouterr()
    assert cli.main([*words, "--draws", "6-7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["part"] == "images 0-99 of 100, draws 6-7 of 8"
    for option, message in (
        (("--draws", "7-8"), "--draws: 7-8 is not within 0-7, the draws; --passes sets their num"),
        (("--images", "5-100"), "--images: 5-100 is not within 0-99, the images"),
    ):
        assert cli.main([*words, *option]) == 1
        assert message in capsys.readouterr().err
