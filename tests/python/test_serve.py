"""`bayescaffe serve`: every endpoint, limit and error of a service, and its page in a browser."""

import base64
import contextlib
import io
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from conftest import PLAIN_ENVIRONMENT, assert_same, save_weights, small_net
from PIL import Image

pytest.importorskip("caffe", reason="pycaffe is not built")
for package in ("starlette", "uvicorn", "python_multipart", "prometheus_client"):
    pytest.importorskip(package, reason=f"{package} is not installed: bayescaffe[serve]")
from bayescaffe import cli  # noqa: E402
from bayescaffe.common.errors import BayesCaffeError  # noqa: E402
from bayescaffe.data.lmdb import LmdbImages  # noqa: E402
from bayescaffe.infer.prediction import Rule, predict  # noqa: E402
from bayescaffe.infer.sampling import sample  # noqa: E402
from bayescaffe.net.model import Model  # noqa: E402
from bayescaffe.serving.app import _listen, read_token  # noqa: E402
from bayescaffe.serving.metrics import Metrics  # noqa: E402
from bayescaffe.stats.analysis import analyze  # noqa: E402
from bayescaffe.stats.decisions import DecisionRule, calibrate_decisions  # noqa: E402

BAYES = "kl_weight: 0.01 dataset_size: 330"
CHILDREN = "/proc/{0}/task/{0}/children"


class Server:
    """A running service, and requests to it."""

    def __init__(self, *arguments):
        command = [sys.executable, "-m", "bayescaffe", "serve", *map(str, arguments)]
        self.process = subprocess.Popen(
            [*command, "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**PLAIN_ENVIRONMENT, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")},
        )
        first = self.process.stdout.readline()
        assert first, self.process.communicate()[1]
        self.url = json.loads(first)["url"]

    def worker(self) -> int:
        """The number of the process that computes."""
        return int(Path(CHILDREN.format(self.process.pid)).read_text().split()[0])

    def signal_worker(self, number):
        os.kill(self.worker(), number)

    def ask(self, path, body=None, kind=None, token=None, **headers):
        """Status, headers and content of an answer."""
        if kind:
            headers["Content-Type"] = kind
        if token:
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(self.url + path, body, headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    def predict(self, body, kind="application/octet-stream", query="", **more):
        status, headers, content = self.ask(f"predict?{query}", body, kind, **more)
        return status, headers, json.loads(content)

    def metrics(self):
        """The numbers, by name and labels."""
        lines = self.ask("metrics")[2].decode().splitlines()
        return {
            name: float(number)
            for name, number in (line.rsplit(" ", 1) for line in lines if line[0] != "#")
        }

    def end(self):
        """The exit code and what it wrote to standard error."""
        self.process.send_signal(signal.SIGTERM)
        error = self.process.communicate(timeout=60)[1]
        return self.process.returncode, error


@contextlib.contextmanager
def running(*arguments):
    server = Server(*arguments)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.end()


@pytest.fixture(scope="module")
def trained(tmp_path_factory, digits):
    return save_weights(tmp_path_factory.mktemp("net"), small_net(digits, BAYES))


@pytest.fixture(scope="module")
def pixels(digits):
    return LmdbImages(digits / "test_lmdb").read(range(6))


@pytest.fixture(scope="module")
def reference(tmp_path_factory, trained):
    """The draws of the test set."""
    path = tmp_path_factory.mktemp("draws") / "test.npz"
    sample(Model(*trained), passes=60, out=path, progress=False)
    return path


LIMITS = {"--max-passes": 80, "--max-images": 5, "--max-body": 20000, "--queue": 6}
LIMITS |= {"--timeout": 20, "--max-pixels": 3000}


@pytest.fixture(scope="module")
def server(trained, reference):
    options = [word for both in LIMITS.items() for word in both]
    with running(*trained, "--passes", 60, "--reference", reference, *options) as started:
        yield started
        code, error = started.end()
        assert (code, "Traceback" in error) == (0, False), error


def png(image, size=None, kind="PNG"):
    content = io.BytesIO()
    picture = Image.fromarray(image[0])
    (picture.resize(size) if size else picture).save(content, kind)
    return content.getvalue()


def form(*parts):
    """A multipart body and its type; a part is a name, a file name or None, and its content."""
    body = b""
    for name, file, content in parts:
        head = f'--cut\r\nContent-Disposition: form-data; name="{name}"'
        head += f'; filename="{file}"' if file else ""
        body += head.encode() + b"\r\n\r\n" + content + b"\r\n"
    return body + b"--cut--\r\n", "multipart/form-data; boundary=cut"


# ---- Answers


def test_an_answer_is_that_of_predict(server, trained, pixels):
    status, _, found = server.predict(png(pixels[0]), query="level=0.9&accept_above=0.3&draws=50")
    (one,) = predict(Model(*trained), pixels[:1], 50, level=0.9, rule=Rule(0.3))
    assert status == 200
    (image,) = found["images"]
    assert found["level"] == 0.9 and found["rule"] == {"accept_above": 0.3, "escalate_below": 0.5}
    for name in ("label", "certain", "decision", "class_name", "draws"):
        assert image[name] == getattr(one, name)
    for name in ("probability", "lower", "upper", "entropy", "epistemic", "probabilities"):
        assert image[name] == pytest.approx(getattr(one, name), abs=1e-6)
    assert np.array(image["intervals"]) == pytest.approx(np.array(one.intervals), abs=1e-6)
    assert image["intervals"][one.label] == [image["lower"], image["upper"]]
    assert image["aleatoric"] == pytest.approx(one.entropy - one.epistemic, abs=1e-6)


def test_all_forms_of_a_body_give_the_same_answer(server, pixels):
    content = png(pixels[1])
    text = base64.b64encode(content).decode()
    plain, stacked = pixels[1, 0].tolist(), pixels[1].tolist()
    items = [text, "data:image/png;base64," + text, plain, stacked]
    bodies = [
        (content, "image/png"),
        (content, "application/octet-stream"),
        (content, "application/x-www-form-urlencoded"),
        form(("image", "a.png", content)),
        (json.dumps({"image": text}).encode(), "application/json"),
        (json.dumps({"images": items}).encode(), "application/json; charset=utf-8"),
        form(("x", "a.png", content), ("draws", None, b"60"), ("y", "b.png", content)),
    ]
    found = []
    for body, kind in bodies:
        status, _, answer = server.predict(body, kind)
        assert status == 200, answer
        found += answer["images"]
    assert [one["image"] for one in found] == [
        *(
            "image",
            "image",
            "image",
            "a.png",
            "image 0",
            "image 0",
            "image 1",
            "image 2",
            "image 3",
        ),
        *("a.png", "b.png"),
    ]
    for one in found:
        assert {**one, "image": ""} == {**found[0], "image": ""}


def test_options_may_be_in_json(server, pixels):
    body = json.dumps({"images": [pixels[0, 0].tolist()], "draws": 45, "level": 0.8}).encode()
    status, _, found = server.predict(body, "application/json", "draws=50")
    assert (status, found["level"], found["images"][0]["draws"]) == (200, 0.8, 45)


def test_inverted_pictures_are_turned_but_not_arrays(server, pixels):
    expected = server.predict(png(pixels[2]))[2]["images"][0]["probabilities"]
    inverted = server.predict(png(255 - pixels[2]), query="invert=true")[2]
    assert inverted["images"][0]["probabilities"] == expected
    body = json.dumps({"image": pixels[2, 0].tolist(), "invert": True}).encode()
    array = server.predict(body, "application/json")[2]["images"][0]
    assert array["probabilities"] == expected


def test_draws_and_what_would_change_are_told_on_request(server, trained, pixels):
    _, _, found = server.predict(png(pixels[3]), query="include_draws=1&explain=1&level=0.6")
    (image,) = found["images"]
    draws = Model(*trained).sample(pixels[3:4], 60)[:, 0]
    assert np.array(image["draw_probabilities"]) == pytest.approx(draws, abs=2e-5)
    changes = image["changes"]

    def decision(level=0.6, **rule):
        (one,) = predict(Model(*trained), pixels[3:4], 60, level=level, rule=Rule(**rule))
        return one.decision

    accepted = [n / 100 for n in range(50, 100) if decision(n / 100) == "accept"]
    assert changes["level"] == (max(accepted) if accepted else None)
    assert changes["escalate_below"] == image["probability"]
    if image["certain"]:
        assert changes["accept_above"] == image["lower"]
        assert decision(accept_above=image["lower"] - 1e-4) == "accept"
        assert decision(accept_above=image["lower"] + 1e-4) != "accept"
    else:
        assert changes["accept_above"] is None
    plain = server.predict(png(pixels[3]))[2]["images"][0]
    assert "changes" not in plain and "draw_probabilities" not in plain


def test_what_would_change_is_worked_by_hand():
    from bayescaffe.infer.explaining import what_would_change
    from bayescaffe.infer.prediction import decide
    from bayescaffe.stats.draws import Draws

    # 101 draws of class 0 from 0.4 to 0.9: at level L the interval begins at 0.65 - L / 4, so it
    # is above 0.5 below level 0.6.
    first = np.linspace(0.4, 0.9, 101)
    draws = Draws(np.stack([first, 1 - first], 1)[:, np.newaxis].astype(np.float32))
    rule = Rule()
    (one,) = decide(draws, ["x"], 0.5, "equal-tailed", rule, None)
    found = what_would_change(draws, one, "equal-tailed", rule)
    assert found["level"] == 0.59
    assert found["accept_above"] == pytest.approx(0.525, abs=1e-5)
    assert found["escalate_below"] == pytest.approx(0.65, abs=1e-5)
    (one,) = decide(draws, ["x"], 0.95, "equal-tailed", rule, None)
    assert what_would_change(draws, one, "equal-tailed", rule)["accept_above"] is None
    assert what_would_change(draws, one, "equal-tailed", Rule(0.9))["level"] is None


# ---- With a calibration


@pytest.fixture(scope="module")
def calibration(tmp_path_factory, reference):
    """The net is not trained, so much of what it accepts may be wrong."""
    path = tmp_path_factory.mktemp("calibration") / "calibration.json"
    calibrate_decisions(reference, 0.8, error=0.95).save(path)
    return path


@pytest.fixture(scope="module")
def calibrated(trained, calibration):
    options = ("--passes", 60, "--calibration", calibration, "--escalate-below", 0.2)
    with running(*trained, *options) as started:
        yield started
        code, error = started.end()
        assert (code, "Traceback" in error) == (0, False), error


def test_a_calibration_decides_as_predict_does(calibrated, calibration, trained, pixels):
    body = json.dumps({"images": [image[0].tolist() for image in pixels], "explain": True})
    status, _, found = calibrated.predict(body.encode(), "application/json")
    assert status == 200
    rule = Rule(escalate_below=0.2)
    expected = predict(Model(*trained), pixels, 60, calibration=calibration, rule=rule)
    decisions = DecisionRule.load(calibration)
    for image, one in zip(found["images"], expected, strict=True):
        assert (image["decision"], image["class_set"]) == (one.decision, list(one.class_set))
        told = image["changes"]["calibrated"]
        assert told["threshold"] == decisions.threshold
        assert (told["probability"] >= told["threshold"]) == (one.decision == "accept")
        assert image["changes"]["level"] is image["changes"]["accept_above"] is None
    # The intervals would decide otherwise, or this shows nothing.
    plain = predict(Model(*trained), pixels, 60, rule=rule)
    assert [one.decision for one in plain] != [one.decision for one in expected]
    promise = json.loads(calibrated.ask("model")[2])["calibration"]
    assert (promise["coverage"], promise["error"], promise["confidence"]) == (0.8, 0.95, 0.95)


@pytest.mark.parametrize("query", ["draws=50", "accept_above=0.4", "accept_above=0.4&level=0.9"])
def test_a_request_of_its_own_is_not_calibrated(calibrated, trained, pixels, query):
    _, _, found = calibrated.predict(png(pixels[2]), query=query + "&explain=1")
    (image,) = found["images"]
    assert image["class_set"] is image["set_names"] is image["changes"]["calibrated"] is None
    options = dict(part.split("=") for part in query.split("&"))
    (one,) = predict(
        Model(*trained),
        pixels[2:3],
        int(options.get("draws", 60)),
        level=float(options.get("level", 0.95)),
        rule=Rule(float(options.get("accept_above", 0.5)), 0.2),
    )
    assert image["decision"] == one.decision
    # The level is not the calibration's.
    assert calibrated.predict(png(pixels[2]), query="level=0.6")[2]["images"][0]["class_set"]


def test_a_calibration_for_other_draws_is_refused(trained, calibration, capsys):
    for options, told in (
        (("--passes", 50), "is for 60 draws"),
        (("--passes", 60, "--seed", 7), "is for the draws of seed"),
        (("--passes", 60, "--accept-above", 0.9), "does not work with --calibration"),
    ):
        code, error = run(capsys, *trained, "--port", 0, "--calibration", calibration, *options)
        assert code == 1 and told in error, error


# ---- What is wrong with a request


@pytest.mark.parametrize(
    "query, told",
    [
        ("draws=0", "draws: '0' is not a whole number from 1 to 80"),
        ("draws=81", "draws: '81' is not a whole number from 1 to 80"),
        ("draws=2.5", "draws: '2.5' is not a whole number from 1 to 80"),
        ("draws=many", "draws: 'many' is not a number"),
        ("level=1", "level: '1' is not a number between 0 and 1"),
        ("level=0", "level: '0' is not a number between 0 and 1"),
        ("level=nan", "level: 'nan' is not a number between 0 and 1"),
        ("accept_above=1.1", "accept_above: '1.1' is not a number from 0 to 1"),
        ("escalate_below=-1", "escalate_below: '-1' is not a number from 0 to 1"),
        ("invert=maybe", "invert: 'maybe' is not true or false"),
        ("channels=grb", "channels: 'grb' is not rgb or bgr"),
        ("passes=5", "'passes': no such option; there are draws, level, accept_above"),
    ],
)
def test_a_wrong_option_is_named(server, pixels, query, told):
    status, _, found = server.predict(png(pixels[0]), query=query)
    assert status == 400 and found["error"].startswith(told), found


@pytest.mark.parametrize(
    "body, kind, status, told",
    [
        (b"", "image/png", 400, "there is no image in the body"),
        (b"no picture", "image/png", 422, "image: not an image, or of a format"),
        (b"x", "text/csv", 415, "content-type 'text/csv': expected image/*"),
        (b"{", "application/json", 400, "the body is not JSON: "),
        (b"\xff", "application/json", 400, "the body is not JSON: "),
        (b"[" * 15000, "application/json", 400, "the body is not JSON: "),
        (b"[]", "application/json", 400, 'the body is not {"images": [...]}'),
        (b'{"images": 3}', "application/json", 400, "images: is not a list"),
        (b'{"images": []}', "application/json", 400, "there is no image"),
        (b'{"images": ["??"]}', "application/json", 422, "image 0: is not base64"),
        (b'{"images": [[[1], [2, 3]]]}', "application/json", 422, "image 0: is no array"),
        (b'{"images": [[["a"]]]}', "application/json", 422, "image 0: is no array"),
        (b'{"images": [[[NaN]]]}', "application/json", 422, "image 0: is no array of finite"),
        (b'{"images": [null]}', "application/json", 422, "image 0: is no array"),
        (b'{"images": [[[1, 2], [3, 4]]]}', "application/json", 422, "image 0: images are 1x2x2"),
        (b'{"images": [1], "x": 1}', "application/json", 422, "image 0: is no array"),
        (b"x", "multipart/form-data", 400, "the body is no form"),
        (b"x", "multipart/form-data; boundary=cut", 400, "the body is no form"),
        (*form(("draws", None, b"60")), 400, "there is no image"),
    ],
)
def test_a_wrong_body_is_told(server, body, kind, status, told):
    found = server.predict(body, kind)
    assert (found[0], found[2]["error"][: len(told)]) == (status, told)


def test_one_bad_image_of_several_is_named(server, pixels):
    body = form(("a", "good.png", png(pixels[0])), ("a", "bad.png", b"x"))
    status, _, found = server.predict(*body)
    assert status == 422
    assert found == {"error": "bad.png: not an image, or of a format that is not known"}


def test_too_much_is_refused(server, pixels):
    status, _, found = server.predict(bytes(20001))
    assert (status, found["error"]) == (
        413,
        "the body has more than the 20000 bytes that are allowed",
    )
    # Without a length, it is counted.
    status, _, found = server.predict(iter([bytes(15000), bytes(15000)]))
    assert status == 413
    images = [pixels[0, 0].tolist()] * 6
    status, _, found = server.predict(json.dumps({"images": images}).encode(), "application/json")
    assert (status, found["error"]) == (413, "6 images; at most 5 are allowed")
    body = form(*[("a", f"{n}.png", png(pixels[0])) for n in range(6)])
    assert server.predict(*body)[0] == 413
    status, _, found = server.predict(png(pixels[0], (60, 51)))
    assert status == 422 and found["error"].startswith("image: has 60 x 51 pixels, more than the")
    assert server.predict(png(pixels[0], (60, 50)))[0] == 200


def test_what_is_not_served_is_told(server):
    status, _, content = server.ask("nothing")
    assert (status, json.loads(content)) == (404, {"error": "Not Found"})
    status, _, content = server.ask("predict")
    assert (status, json.loads(content)) == (405, {"error": "Method Not Allowed"})


# ---- What it tells of itself


def test_the_model_is_described_without_paths(server, trained, pixels):
    from bayescaffe.common.files import sha256

    status, headers, content = server.ask("model")
    found = json.loads(content)
    assert status == 200
    assert found["image_shape"] == [1, 12, 12] and found["classes"] == 4
    assert (found["draws"], found["level"], found["seed"]) == (60, 0.95, 1)
    assert found["weights_sha256"] == sha256(trained[1])
    expected = {name[2:].replace("-", "_"): n for name, n in LIMITS.items()}
    assert expected.items() >= found["limits"].items()
    assert "default-src 'none'" in headers["content-security-policy"]
    answers = [server.ask(path) for path in ("", "docs", "openapi.json", "metrics", "healthz")]
    answers += [server.ask("predict", b"x"), server.ask("predict", png(pixels[0]))]
    answers += [server.ask("model"), server.ask("none")]
    for _, headers, content in answers:
        for secret in (str(trained[0].parent), str(Path(__file__).parents[2]), "Traceback"):
            assert secret not in content.decode() and secret not in str(headers)


def test_it_is_healthy(server):
    assert server.ask("healthz")[::2] == (200, b'{"status":"ok"}')


def test_openapi_describes_every_path_option_and_field(server, pixels):
    from bayescaffe.serving.jobs import OPTIONS

    document = json.loads(server.ask("openapi.json")[2])
    assert set(document["paths"]) == {"/predict", "/model", "/metrics", "/healthz"}
    post = document["paths"]["/predict"]["post"]
    assert [one["name"] for one in post["parameters"]] == ["draws", *OPTIONS]
    assert post["parameters"][0]["schema"]["maximum"] == 80
    answer = post["responses"]["200"]["content"]["application/json"]["schema"]
    found = server.predict(png(pixels[0]), query="include_draws=1&explain=1")[2]
    assert set(found) == set(answer["properties"])
    image = answer["properties"]["images"]["items"]
    assert set(found["images"][0]) == set(image["properties"])
    assert set(found["images"][0]["changes"]) == set(image["properties"]["changes"]["properties"])
    assert "security" not in document
    page = server.ask("docs")[2].decode()
    for word in (*document["paths"], *OPTIONS, *image["properties"], "503"):
        assert word in page
    assert not re.search(r"https?://", page)


def test_metrics_count_answers(server, pixels):
    before = server.metrics()
    body = json.dumps({"images": [image[0].tolist() for image in pixels[:4]]}).encode()
    found = server.predict(body, "application/json")[2]["images"]
    server.predict(b"x")
    server.ask("some-name")
    after = server.metrics()

    def more(name):
        return after[name] - before.get(name, 0)

    prefix = 'bayescaffe_requests_total{code="%d",path="%s"}'
    assert more(prefix % (200, "/predict")) == more(prefix % (422, "/predict")) == 1
    assert more(prefix % (404, "other")) == 1
    assert more("bayescaffe_predict_seconds_count") == 1
    assert more("bayescaffe_batch_images_sum") == 5  # with the one that cannot be read
    for decision in ("accept", "repeat", "escalate"):
        count = sum(one["decision"] == decision for one in found)
        assert more(f'bayescaffe_decisions_total{{decision="{decision}"}}') == count
    entropy = sum(one["entropy"] for one in found)
    assert more("bayescaffe_entropy_nats_sum") == pytest.approx(entropy, abs=1e-6)
    assert more("bayescaffe_entropy_nats_count") == 4
    assert more("bayescaffe_uncertain_total") == sum(not one["certain"] for one in found)
    assert after["bayescaffe_images_waiting"] == 0


def test_drift_is_measured_against_the_test_set(server, reference):
    found = server.metrics()
    share = 1 - analyze(reference, 0.95, "equal-tailed", progress=False).certain.mean()
    assert found["bayescaffe_uncertain_share_reference"] == pytest.approx(share)
    assert "bayescaffe_drift_z" in found


def test_drift_is_worked_by_hand():
    metrics = Metrics(lambda: 0, 0.1)
    assert math.isnan(metrics.drift())
    image = {"decision": "accept", "entropy": 0, "epistemic": 0}
    for number in range(100):
        metrics.answer({**image, "certain": number >= 19}, True)
        metrics.answer({**image, "certain": False}, False)
    assert metrics.uncertain_share() == pytest.approx(0.19)
    assert metrics.drift() == pytest.approx(0.09 / 0.03)
    for _ in range(1000):
        metrics.answer({**image, "certain": True}, True)
    assert metrics.uncertain_share() == 0


# ---- Several at once, and when something breaks


def asked_while_stopped(server, bodies, then=signal.SIGCONT):
    """The answers to requests that all wait before the worker goes on."""
    start = server.metrics()["bayescaffe_images_waiting"]
    server.signal_worker(signal.SIGSTOP)
    with ThreadPoolExecutor(len(bodies)) as pool:
        first = pool.submit(server.predict, bodies[0])
        time.sleep(0.3)  # until the worker has it
        others = [pool.submit(server.predict, body) for body in bodies[1:]]
        for _ in range(200):
            if server.metrics()["bayescaffe_images_waiting"] == start + len(others):
                break
            time.sleep(0.02)
        else:
            raise AssertionError("they do not wait")
        server.signal_worker(then)
        return [one.result() for one in (first, *others)]


def test_requests_that_wait_are_computed_together_with_the_same_bits(server, trained, pixels):
    before = server.metrics()
    answers = asked_while_stopped(server, [png(image) for image in pixels])
    after = server.metrics()
    batches = (after[f"bayescaffe_batch_images_{n}"] for n in ("count", "sum"))
    earlier = (before[f"bayescaffe_batch_images_{n}"] for n in ("count", "sum"))
    assert [a - b for a, b in zip(batches, earlier, strict=True)] == [2, 6]
    together = np.array([found["images"][0]["probabilities"] for _, _, found in answers])
    alone = [server.predict(png(image))[2]["images"][0]["probabilities"] for image in pixels]
    assert_same(together, np.array(alone))


def test_a_full_queue_is_refused_with_a_time_to_come_again(server, pixels):
    content = png(pixels[0])
    server.signal_worker(signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(9) as pool:
            waiting = [pool.submit(server.predict, content)]
            time.sleep(0.3)  # until the worker has it
            waiting += [pool.submit(server.predict, content) for _ in range(8)]
            for _ in range(300):
                if any(one.done() for one in waiting):
                    break
                time.sleep(0.02)
            time.sleep(0.2)
            server.signal_worker(signal.SIGCONT)
            found = [one.result() for one in waiting]
    finally:
        server.signal_worker(signal.SIGCONT)
    # One is computed, six wait.
    assert sorted(status for status, _, _ in found) == [200] * 7 + [503] * 2
    for status, headers, answer in found:
        if status == 503:
            assert 1 <= int(headers["Retry-After"]) <= 60
            assert answer == {"error": "too many requests wait; try again later"}


def test_a_crash_is_a_500_and_the_next_request_works(server, pixels):
    expected = server.predict(png(pixels[0]))[2]
    restarts = server.metrics()["bayescaffe_worker_restarts_total"]
    server.signal_worker(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        crashed = pool.submit(server.predict, png(pixels[0]))
        time.sleep(0.3)
        server.signal_worker(signal.SIGKILL)
        status, _, answer = crashed.result()
    assert (status, set(answer)) == (500, {"error"})
    assert server.predict(png(pixels[0]))[::2] == (200, expected)
    assert server.metrics()["bayescaffe_worker_restarts_total"] == restarts + 1
    # Also if it dies while nobody asks; then nobody need notice.
    server.signal_worker(signal.SIGKILL)
    time.sleep(0.2)
    assert server.predict(png(pixels[0]))[0] in (200, 500)
    assert server.predict(png(pixels[0]))[::2] == (200, expected)


def test_neighbours_of_a_crash_are_answered(server, pixels):
    """The requests that were with it in the batch are computed again, each alone."""
    content = png(pixels[0])
    server.signal_worker(signal.SIGSTOP)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(server.predict, content)
        time.sleep(0.3)
        others = [pool.submit(server.predict, content) for _ in range(3)]
        time.sleep(0.3)
        server.signal_worker(signal.SIGKILL)
        assert first.result()[0] == 500
        assert [one.result()[0] for one in others] == [200] * 3


def test_what_takes_too_long_is_ended(trained, pixels):
    with running(*trained, "--passes", 41, "--timeout", 2) as server:
        server.signal_worker(signal.SIGSTOP)
        status, _, answer = server.predict(png(pixels[0]))
        assert (status, answer) == (504, {"error": "not computed within 2 s"})
        assert server.predict(png(pixels[0]))[0] == 200
        # A body that does not come.
        import http.client

        host, port = server.url.split("/")[2].split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=20)
        connection.putrequest("POST", "/predict")
        connection.putheader("Content-Length", "100")
        connection.endheaders()
        assert connection.getresponse().status == 408
        connection.close()


def test_sigterm_lets_requests_end(trained, pixels):
    with running(*trained, "--passes", 41) as server:
        server.signal_worker(signal.SIGSTOP)
        worker = server.worker()
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(server.predict, png(pixels[0]))
            time.sleep(0.3)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            assert server.process.poll() is None
            with pytest.raises(urllib.error.URLError):
                server.ask("healthz")
            os.kill(worker, signal.SIGCONT)
            assert asked.result()[0] == 200
        error = server.process.communicate(timeout=30)[1]
        assert (server.process.returncode, "Traceback" in error) == (0, False), error
        assert not Path(f"/proc/{worker}").exists()


def test_the_worker_ends_with_a_killed_service(trained):
    """And a service that others reach warns if it has no token."""
    server = Server(*trained, "--passes", 41, "--host", "0.0.0.0")
    worker = server.worker()
    server.process.kill()
    for _ in range(200):
        if not Path(f"/proc/{worker}").exists():
            break
        time.sleep(0.05)
    else:
        raise AssertionError("the worker is still there")
    error = server.process.communicate()[1]
    assert "--host 0.0.0.0: others may reach this service, and it has no token" in error


# ---- The token, and how it starts


def test_answers_are_not_held_back():
    """asyncio sets TCP_NODELAY only if the listening socket says that it is of TCP."""
    with _listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


@pytest.fixture(scope="module")
def lenet(tmp_path_factory):
    """A service for digits of 28 x 28, with a token and a stopping rule."""
    folder = tmp_path_factory.mktemp("lenet")
    net = """
      layer { name: "data" type: "Input" top: "data"
              input_param { shape { dim: 1 dim: 1 dim: 28 dim: 28 } } }
      layer { name: "out" type: "BayesInnerProduct" bottom: "data" top: "out"
              bayes_param { kl_weight: 0.01 dataset_size: 330 }
              inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
      layer { name: "prob" type: "Softmax" bottom: "out" top: "prob" }"""
    (folder / "token").write_text("s3cret-token\n")
    trained = save_weights(folder, net)
    rule = make_rule(trained, folder)
    options = ("--scale", 0.01, "--passes", 41, "--adaptive", rule)
    with running(*trained, *options, "--token-file", folder / "token") as started:
        yield started


def test_a_token_is_asked_for(lenet, pixels):
    for token in (None, "wrong", "s3cret-toke"):
        for path in ("model", "metrics", "predict"):
            body = png(pixels[0]) if path == "predict" else None
            status, headers, _ = lenet.ask(path, body, token=token)
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
    for path in ("", "healthz", "docs", "openapi.json", "page.js", "page.css"):
        assert lenet.ask(path)[0] == 200
    assert "security" in json.loads(lenet.ask("openapi.json")[2])
    assert lenet.ask("model", token="s3cret-token")[0] == 200
    # The stopping rule gives clear images fewer draws, unless a request says how many.
    status, _, found = lenet.predict(png(pixels[0]), token="s3cret-token")
    assert (status, found["images"][0]["draws"]) == (200, 20)
    found = lenet.predict(png(pixels[0]), query="draws=30", token="s3cret-token")[2]
    assert found["images"][0]["draws"] == 30


def make_rule(trained, folder):
    """A stopping rule for 41 draws, by which every image is settled after 20."""
    from bayescaffe.common.files import sha256
    from bayescaffe.stats.stopping import StoppingRule

    rule = StoppingRule(
        stages=(20,),
        threshold=-100.0,
        passes=41,
        level=0.95,
        interval="equal-tailed",
        error=0.5,
        confidence=0.95,
        images=100,
        disagreements=0,
        settled=1.0,
        mean_draws=20.0,
        seed=1,
        weights_sha256=(sha256(trained[1]),),
        mc_dropout=False,
        antithetic=False,
    )
    rule.save(folder / "rule.json")
    return folder / "rule.json"


@pytest.mark.parametrize("text", ["", "\n", "two words", "zwölf"])
def test_a_bad_token_is_refused(tmp_path, text):
    path = tmp_path / "token"
    path.write_text(text)
    with pytest.raises(BayesCaffeError, match="token: (expected one line|is no token)"):
        read_token(path)


def run(capsys, *arguments):
    code = cli.main(["serve", *map(str, arguments)])
    return code, capsys.readouterr().err


def test_what_cannot_be_served_is_told(trained, capsys, tmp_path, server):
    code, error = run(capsys, tmp_path / "none.prototxt", trained[1])
    assert code == 1 and "none.prototxt: no such file" in error
    port = server.url.split(":")[-1].strip("/")
    code, error = run(capsys, *trained, "--port", port)
    assert code == 1 and f"--port {port}: cannot listen there" in error
    (tmp_path / "names").write_text("one\n")
    code, error = run(capsys, *trained, "--port", 0, "--classes", tmp_path / "names")
    assert code == 1 and "--classes: 1 names for 4 classes" in error
    code, error = run(capsys, *trained, "--port", 0, "--level", 2)
    assert code == 1 and "--level 2.0: the level is between 0 and 1" in error
    code, error = run(capsys, *trained, "--port", 0, "--timeout", 0)
    assert code == 1 and "--timeout 0.0: expected more than 0" in error


def test_a_reference_of_other_weights_is_refused(trained, capsys, tmp_path, digits, reference):
    other = save_weights(
        tmp_path,
        small_net(digits, BAYES),
        lambda net: net.params["out"][0].data.__imul__(2),
    )
    code, error = run(capsys, *other, "--port", 0, "--reference", reference)
    assert code == 1 and f"--reference {reference}: has draws of other weights" in error


# ---- The page in a browser


@pytest.fixture
def open_page(browser):
    """Opens the page of a service; fails the test if it complained, or asked for anything else."""
    contexts, complaints, expected = [], [], []

    def open_it(server, width=1200, height=900, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        own = (server.url, "data:", "blob:")
        page.on("request", lambda r: r.url.startswith(own) or complaints.append(r.url))
        page.goto(server.url)
        return page

    open_it.expect = expected.append
    yield open_it
    for context in contexts:
        context.close()
    # Chromium tells of every answer that is an error; those that a test provokes are expected.
    assert [one for one in complaints if not any(word in one for word in expected)] == []


def test_a_picture_is_answered_on_the_page(server, open_page, pixels):
    page = open_page(server)
    page.wait_for_selector("#net:has-text('12 × 12 grey')")
    assert not page.is_visible("#tabs") and not page.is_visible("#canvas")
    content = png(pixels[0])
    page.set_input_files(
        "#picture", files=[{"name": "a.png", "mimeType": "image/png", "buffer": content}]
    )
    page.wait_for_selector("#result:not([hidden])")
    expected = server.predict(content)[2]["images"][0]
    assert page.text_content("#decision") == expected["decision"]
    assert page.text_content("#class") == str(expected["label"])
    values = page.eval_on_selector_all(".row .value", "all => all.map(one => one.textContent)")
    assert values == [f"{number:.3f}" for number in expected["probabilities"]]
    assert page.locator(".row circle").count() == 4 * 60
    # The whisker is as long as the interval.
    low, high = page.eval_on_selector(
        ".row.best .whisker", "one => [one.getAttribute('x1'), one.getAttribute('x2')]"
    )
    ends = [float(text.rstrip("%")) / 100 for text in (low, high)]
    assert ends == pytest.approx([expected["lower"], expected["upper"]])
    # With the keyboard: a lower threshold or level may change the decision.
    for key, id_ in (("Home", "accept"), ("Home", "level"), ("End", "escalate")):
        page.focus(f"#{id_}")
        page.keyboard.press(key)
    page.wait_for_selector("#interval:has-text('50 % interval')")
    query = "level=0.5&accept_above=0&escalate_below=1"
    changed = server.predict(content, query=query)[2]["images"][0]
    page.wait_for_selector(f"#decision:has-text('{changed['decision']}')")
    page.click("#reset")
    page.wait_for_selector("#interval:has-text('95 % interval')")
    # Another picture, by the clipboard.
    page.evaluate(
        """data => {
            const files = new DataTransfer();
            files.items.add(new File([Uint8Array.from(data)], "b.png", {type: "image/png"}));
            document.dispatchEvent(new ClipboardEvent("paste", {clipboardData: files}));
        }""",
        list(png(pixels[1])),
    )
    other = server.predict(png(pixels[1]))[2]["images"][0]
    page.wait_for_selector(f".row .value:has-text('{other['probabilities'][0]:.3f}')")


def test_a_set_is_shown_on_the_page(calibrated, open_page, pixels):
    page = open_page(calibrated)
    content = png(pixels[0])
    file = {"name": "a.png", "mimeType": "image/png", "buffer": content}
    page.set_input_files("#picture", files=[file])
    page.wait_for_selector("#set:not([hidden])")
    expected = calibrated.predict(content)[2]["images"][0]
    names = ", ".join(map(str, expected["class_set"]))
    assert f"Set: {{{names}}}. Of images like the held-out ones, 80 %" in page.text_content("#set")
    assert "The calibration accepts from" in page.text_content("#accept-says")
    page.focus("#accept")
    page.keyboard.press("End")
    page.wait_for_selector("#set", state="hidden")
    page.click("#reset")
    page.wait_for_selector("#set:not([hidden])")


def test_an_error_is_shown_on_the_page(server, open_page, pixels):
    open_page.expect("422")
    page = open_page(server)
    bad = {"name": "a.png", "mimeType": "image/png", "buffer": b"x"}
    page.set_input_files("#picture", files=[bad])
    page.wait_for_selector("#error:not([hidden])")
    assert page.text_content("#error") == "image: not an image, or of a format that is not known"
    assert not page.is_visible("#result")
    page.set_input_files("#picture", files=[{**bad, "buffer": png(pixels[0])}])
    page.wait_for_selector("#result:not([hidden])")
    assert not page.is_visible("#error")


@pytest.mark.parametrize("width, scheme", [(1200, "dark"), (360, "light")])
def test_a_digit_is_drawn_with_a_token(lenet, open_page, width, scheme):
    open_page.expect("401")
    page = open_page(lenet, width, 800, color_scheme=scheme)
    page.wait_for_selector("#login:not([hidden])")
    page.fill("#token", "s3cret-token")
    page.keyboard.press("Enter")
    page.wait_for_selector("#canvas", state="visible")
    box = page.locator("#canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 40, steps=8)
    page.mouse.up()
    page.wait_for_selector("#result:not([hidden])")
    assert page.locator(".row").count() == 10 and page.locator(".row circle").count() == 200
    # Nothing is wider than the screen.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.click("#clear")
    assert page.is_visible("#empty") and not page.is_visible("#result")
