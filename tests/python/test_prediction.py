"""`bayescaffe predict`: label, interval and decision of single images."""

import csv
import io
import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from conftest import PLAIN_ENVIRONMENT, assert_same, save_weights, small_net
from PIL import Image

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe import cli  # noqa: E402
from bayescaffe.common.errors import BayesCaffeError  # noqa: E402
from bayescaffe.data.lmdb import LmdbImages  # noqa: E402
from bayescaffe.infer import prediction  # noqa: E402
from bayescaffe.infer.prediction import Rule, predict  # noqa: E402
from bayescaffe.net.model import Model  # noqa: E402

pytestmark = pytest.mark.engine
BAYES = "kl_weight: 0.01 dataset_size: 330"


@pytest.fixture
def trained(tmp_path, digits):
    return save_weights(tmp_path, small_net(digits, BAYES))


@pytest.fixture
def pixels(digits):
    return LmdbImages(digits / "test_lmdb").read(range(6))


@pytest.fixture
def folder(tmp_path, pixels):
    folder = tmp_path / "images"
    (folder / "sub").mkdir(parents=True)
    names = [folder / f"{number}.png" for number in range(5)] + [folder / "sub" / "5.png"]
    for name, image in zip(names, pixels, strict=True):
        Image.fromarray(image[0]).save(name)
    return folder


def test_predictions_are_those_of_the_draws(trained, pixels):
    passes = Model(*trained, seed=4).sample(pixels, 60).astype(float)
    found = predict(Model(*trained, seed=4), pixels, passes=60, level=0.9)
    means = passes.mean(axis=0)
    lower, upper = np.quantile(passes, [0.05, 0.95], axis=0)
    assert len(found) == 6
    for row, one in enumerate(found):
        label = means[row].argmax()
        others = np.delete(upper[row], label).max()
        assert one.label == label
        assert one.probability == pytest.approx(means[row, label], abs=1e-6)
        assert one.probabilities == pytest.approx(means[row], abs=1e-6)
        assert (one.lower, one.upper) == pytest.approx(
            (lower[row, label], upper[row, label]), abs=1e-6
        )
        assert one.certain == (lower[row, label] > others)
        assert one.entropy == pytest.approx(-(means[row] * np.log(means[row])).sum(), abs=1e-5)
        assert 0 < one.epistemic < one.entropy
        assert one.decision == Rule().decide(one.certain, one.lower, one.probability)
        assert one.image == f"array: image {row}"
    assert len({one.label for one in found}) > 1


def test_files_folders_contents_and_arrays_give_the_same(trained, folder, pixels):
    model = Model(*trained)
    expected = [one.probabilities for one in predict(model, pixels, 50)]
    by_folder = predict(model, folder, 50)
    assert [one.probabilities for one in by_folder] == expected
    assert [one.image for one in by_folder] == [
        *(f"{folder}/{number}.png" for number in range(5)),
        f"{folder}/sub/5.png",
    ]
    content = (folder / "0.png").read_bytes()
    mixed = predict(model, [folder / "sub", content, str(folder / "3.png")], 50)
    assert_same(
        np.array([one.probabilities for one in mixed]), np.array([expected[i] for i in (5, 0, 3)])
    )


def test_a_prototxt_and_its_weights_are_a_model(trained, pixels):
    expected = predict(Model(*trained), pixels, 50)
    assert predict(trained[0], pixels, 50, weights=trained[1]) == expected
    with pytest.raises(BayesCaffeError, match="give the caffemodel, too"):
        predict(trained[0], pixels, 50)


def test_an_inverted_photo_is_the_original_again(trained, folder, pixels):
    Image.fromarray(255 - pixels[0, 0]).convert("RGB").save(folder / "ink.png")
    inverted = predict(Model(*trained), folder / "ink.png", 50, invert=True)
    assert inverted[0].probabilities == predict(Model(*trained), pixels[:1], 50)[0].probabilities


def test_chunks_do_not_matter(trained, pixels, monkeypatch):
    expected = [one.probability for one in predict(Model(*trained), pixels, 3)]
    monkeypatch.setattr(prediction, "CHUNK_BYTES", 2 * 4 * 144)
    found = [one.probability for one in predict(Model(*trained), pixels, 3)]
    assert_same(np.array(found), np.array(expected))


@pytest.mark.parametrize(
    "certain, lower, probability, decision",
    [
        (True, 0.7, 0.8, "accept"),
        (True, 0.69, 0.8, "repeat"),
        (False, 0.7, 0.8, "repeat"),
        (False, 0.1, 0.4, "repeat"),
        (False, 0.1, 0.39, "escalate"),
        (True, 0.1, 0.39, "escalate"),
    ],
)
def test_the_rule_decides(certain, lower, probability, decision):
    assert (
        Rule(accept_above=0.7, escalate_below=0.4).decide(certain, lower, probability) == decision
    )


def test_thresholds_are_probabilities():
    with pytest.raises(BayesCaffeError, match=r"accept_above=1.1 is not within 0..1"):
        Rule(accept_above=1.1)
    with pytest.raises(BayesCaffeError, match=r"escalate_below=nan is not within 0..1"):
        Rule(escalate_below=float("nan"))


def test_a_net_that_is_not_random_needs_one_pass(tmp_path, digits, pixels, caplog, monkeypatch):
    caplog.set_level("INFO", "bayescaffe")
    asked = []
    original = Model.sample

    def spy(self, images, draws):
        asked.append(draws)
        return original(self, images, draws)

    monkeypatch.setattr(Model, "sample", spy)
    trained = save_weights(tmp_path, small_net(digits, None))
    (one,) = predict(Model(*trained), pixels[:1])
    assert one.lower == one.upper == pytest.approx(one.probability)
    assert (one.certain, one.epistemic) == (True, 0)
    assert asked == [1]
    assert "no layer is random, so intervals have no width" in caplog.text


def test_too_few_passes_are_said(trained, pixels, caplog):
    predict(Model(*trained), pixels, 5)
    assert "5 draws are too few for intervals at level 0.95" in caplog.text
    with pytest.raises(BayesCaffeError, match="passes=0: at least one draw is needed"):
        predict(Model(*trained), pixels, 0)
    with pytest.raises(
        BayesCaffeError, match="level=95: the level of a credible interval is between"
    ):
        predict(Model(*trained), pixels, 5, level=95)


def test_a_bad_image_is_told_and_the_others_are_predicted(trained, folder, tmp_path):
    (folder / "2.png").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    errors = {}

    def note(name, error):
        errors[name] = str(error)

    images = [folder, folder / "none.png", tmp_path / "empty"]
    found = predict(Model(*trained), images, 50, on_error=note)
    assert [one.image[-5:] for one in found] == ["0.png", "1.png", "3.png", "4.png", "5.png"]
    assert errors == {
        f"{folder}/2.png": f"{folder}/2.png: not an image, or of a format that is not known",
        f"{folder}/none.png": f"{folder}/none.png: No such file or directory",
        f"{tmp_path}/empty": f"{tmp_path}/empty: no image files in this folder",
    }
    with pytest.raises(BayesCaffeError, match="2.png: not an image"):
        predict(Model(*trained), folder, 50)
    assert predict(Model(*trained), folder / "2.png", 50, on_error=note) == []


def run(capsys, *arguments):
    code = cli.main(["predict", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_prints_a_table(trained, folder, capsys, tmp_path):
    (tmp_path / "names").write_text("null\none\ntwo\nthree\n")
    more = ("--classes", tmp_path / "names", "--level", 0.9)
    code, out, _ = run(capsys, *trained, folder, *more)
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split("  ")[0] == "image"
    assert "90 % interval" in lines[0]
    expected = predict(
        Model(*trained), folder, level=0.9, class_names=["null", "one", "two", "three"]
    )
    for line, one in zip(lines[1:7], expected, strict=True):
        words = line.split()
        assert words[:3] == [one.image, one.class_name, f"{one.probability:.3f}"]
        assert words[3:6] == [f"{one.lower:.3f}", "to", f"{one.upper:.3f}"]
        assert words[6:] == [
            "yes" if one.certain else "no",
            f"{one.entropy:.3f}",
            f"{one.epistemic:.3f}",
            one.decision,
        ]
    assert lines[-1].startswith("6 images: ")


def test_the_thresholds_of_the_command_decide(trained, folder, capsys):
    def decisions(*options):
        return json.loads(run(capsys, *trained, folder, "--json", *options)[1])["decisions"]

    assert decisions("--accept-above", 1, "--escalate-below", 1)["escalate"] == 6
    assert decisions("--accept-above", 1, "--escalate-below", 0)["repeat"] == 6


def test_the_command_prints_json_and_writes_csv(trained, folder, capsys, tmp_path):
    path = tmp_path / "x.csv"
    code, out, _ = run(capsys, *trained, folder / "0.png", "--json", "--csv", path)
    result = json.loads(out)
    (expected,) = predict(Model(*trained), folder / "0.png")
    (image,) = result["images"]
    assert code == 0
    assert image["probabilities"] == list(expected.probabilities)
    assert (image["decision"], image["label"]) == (expected.decision, expected.label)
    assert result["decisions"][expected.decision] == 1
    assert result["errors"] == []
    with path.open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["lower"]) == expected.lower
    assert row["decision"] == expected.decision


def test_the_command_fails_after_predicting_what_it_can(trained, folder, capsys, caplog):
    (folder / "2.png").write_bytes(b"x")
    code, out, err = run(capsys, *trained, folder, "--json")
    assert code == 1
    assert len(json.loads(out)["images"]) == 5
    assert json.loads(out)["errors"][0]["image"] == f"{folder}/2.png"
    assert f"{folder}/2.png: not an image" in caplog.text
    assert "error: 1 of 6 images or folders could not be read" in err
    code, out, err = run(capsys, *trained, folder / "2.png")
    assert (code, out) == (1, "")


def test_an_image_comes_from_standard_input(trained, pixels):
    content = io.BytesIO()
    Image.fromarray(pixels[0, 0]).resize((48, 48), Image.Resampling.NEAREST).save(content, "JPEG")
    command = [sys.executable, "-m", "bayescaffe", "predict", *map(str, trained), "-", "--json"]
    done = subprocess.run(
        command, input=content.getvalue(), capture_output=True, env=PLAIN_ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr
    (image,) = json.loads(done.stdout)["images"]
    (expected,) = predict(Model(*trained), content.getvalue())
    assert image["image"] == "-"
    assert image["probability"] == expected.probability


def predict_lines(*arguments, **options):
    command = [sys.executable, "-m", "bayescaffe", "predict", *map(str, arguments)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, **pipes, text=True, env=PLAIN_ENVIRONMENT, **options)


def test_paths_go_in_and_answers_come_out(trained, folder):
    """Each answer comes before the next path is written."""
    expected = predict(Model(*trained), folder, 50)
    process = predict_lines(*trained, "--jsonl", "-", "--passes", 50)
    for one in expected[:2]:
        process.stdin.write(f"{one.image}\n")
        process.stdin.flush()
        found = json.loads(process.stdout.readline())
        assert (found["image"], found["decision"]) == (one.image, one.decision)
        assert found["probabilities"] == pytest.approx(one.probabilities, abs=1e-6)
    rest = [one.image for one in expected[2:]]
    out, error = process.communicate("\n".join([*rest, "", f"{folder}/none.png"]))
    found = [json.loads(line) for line in out.splitlines()]
    answers = {one["image"]: one.get("decision") for one in found}
    assert answers == {f"{folder}/none.png": None} | {o.image: o.decision for o in expected[2:]}
    assert "none.png: No such file" in next(one["error"] for one in found if "error" in one)
    assert process.returncode == 1 and "1 images could not be read" in error


def test_pictures_that_come_to_a_folder_are_predicted(trained, folder, pixels, tmp_path):
    process = predict_lines(*trained, "--watch", folder, "--passes", 50)
    first = {json.loads(process.stdout.readline())["image"] for _ in range(6)}
    assert first == {one.image for one in predict(Model(*trained), folder, 50)}
    Image.fromarray(pixels[1, 0]).save(folder / "new.png")
    found = json.loads(process.stdout.readline())
    (expected,) = predict(Model(*trained), pixels[1:2], 50)
    assert found["image"] == f"{folder}/new.png"
    assert found["probabilities"] == pytest.approx(expected.probabilities, abs=1e-6)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")


def test_watching_goes_alone(trained, folder, tmp_path, capsys):
    for more in (["--jsonl", "-"], [folder], ["--csv", "x.csv"]):
        with pytest.raises(SystemExit):
            run(capsys, *trained, "--watch", folder, *more)
        assert "--watch and --jsonl go without IMAGE" in capsys.readouterr().err
    code, _, error = run(capsys, *trained, "--watch", tmp_path / "none")
    assert code == 1 and f"{tmp_path}/none: no such folder to watch" in error
