"""The report: what it says, and how the page behaves in a real browser."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
from bayescaffe import cli
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.reporting.images import GALLERY
from bayescaffe.reporting.page import report
from bayescaffe.stats.analysis import analyze
from bayescaffe.stats.decisions import calibrate_decisions
from bayescaffe.stats.draws import Draws, load_draws, save_draws
from conftest import REPO, layer_posterior

NAMES = ["cat", "<b>dog</b>", "</script><i>x", 'the "owl"', "a sulphur-crested cockatoo & hen"]
STOCK = "plain <net> of_a_long_name_without_a_gap"
TITLE = "Trees & <img src=x onerror=alert(1)>"
CURVE = {
    "iteration": np.arange(0, 1000, 10.0),
    "loss": np.geomspace(2, 0.1, 100),
    "test_error": np.where(np.arange(100) % 10 == 0, np.geomspace(0.5, 0.04, 100), np.nan),
    "tau:conv": np.linspace(0.4, 0.05, 100),
    "tau:fc": np.linspace(1, 0.7, 100),
}
LAYERS = [
    layer_posterior("conv", 0.05, 0.1, weights=500, biases=20, tau_low=0.01, tau_high=0.23),
    layer_posterior("fc", 0.7, weights=4000),
]


def make_draws(images=200, draws=50, strength=3.5, seed=0, labels=True, **meta):
    """Draws of a net that is mostly right, sometimes uncertain, and rarely wrong but certain."""
    random = np.random.default_rng(seed)
    truth = random.integers(0, 5, images)
    seen = np.where(random.random(images) < 0.06, (truth + 1) % 5, truth)
    clarity = 3 * strength * random.random((images, 1))
    scores = random.normal(0, 1, (images, 5)) + clarity * np.eye(5)[seen]
    scores = scores + random.normal(0, 0.7, (draws, images, 5))
    probabilities = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    found = {"seed": 7, "passes": draws, "created": "2026-11-16T08:00:00+00:00", **meta}
    return Draws(probabilities.astype(np.float32), truth if labels else None, found)


def pictures(indices):
    random = np.random.default_rng(1)
    return random.integers(0, 256, (300, 1, 12, 12), np.uint8)[list(indices)]


@pytest.fixture(scope="module")
def draws():
    files = [f"a_folder/with_a_long_name/{number:012}.png" for number in range(200)]
    return make_draws(class_names=NAMES, names=files)


@pytest.fixture(scope="module")
def full(draws, tmp_path_factory):
    """A report with every part, and the analysis that it is of."""
    ood = make_draws(images=80, strength=0.3, seed=3)
    rule = calibrate_decisions(make_draws(images=400, seed=5), 0.9, error=0.1)
    analysis = analyze(draws, ood=ood, calibration=rule)
    path = report(
        tmp_path_factory.mktemp("report") / "report.html",
        draws,
        analysis,
        title=TITLE,
        curves={"Bayesian": CURVE, "plain": {k: CURVE[k] for k in ("iteration", "loss")}},
        layers=LAYERS,
        ood=analyze(ood),
        images=pictures,
        baselines={STOCK: analyze(make_draws(draws=1))},
        command="bayescaffe report draws.npz",
    )
    return SimpleNamespace(path=path, text=path.read_text(), analysis=analysis)


def words(text):
    """The page's text as a reader sees it."""

    class Reader(HTMLParser):
        seen, silent = [], False

        def handle_starttag(self, tag, attributes):
            self.silent = tag in ("script", "style", "title", "noscript")

        def handle_endtag(self, tag):
            self.silent = False

        def handle_data(self, data):
            if not self.silent:
                self.seen.append(data)

    reader = Reader()
    reader.seen = []
    reader.feed(text)
    return " ".join(" ".join(reader.seen).split())


def data_of(text):
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])


# What the page says


def test_summary_tells_the_counts(full):
    a, text = full.analysis, words(full.text)
    wrong, certain, bad = (~a.correct).sum(), a.certain.sum(), (~a.correct & a.certain).sum()
    assert wrong > 5 and bad > 1  # else this test would say little
    assert "200 images of 5 classes, classified by 50 networks drawn from the posterior" in text
    assert f"wrong for {wrong} of them ({100 * wrong / 200:.2f}%)" in text
    assert f"certain about {certain} predictions, and {bad} of these are wrong" in text
    assert f"1 in {certain / bad:.0f} certain predictions" in text


def test_share_for_a_human_reaches_the_error_it_promises(full):
    a = full.analysis
    share, risk = re.search(
        r"Handing the least confident ([\d.]+)% .* error of at most ([\d.]+)% among",
        words(full.text),
    ).groups()
    accepted, risk = round(a.images * (1 - float(share) / 100)), float(risk) / 100
    wrong = np.cumsum(~a.correct[np.argsort(-a.confidence)])
    assert wrong[accepted - 1] <= risk * accepted and risk < a.metrics["error"]
    # Not one image more could be accepted.
    assert (wrong[accepted:] > risk * np.arange(accepted + 1, a.images + 1)).all()


def test_table_has_the_four_counts(full):
    cells = re.findall(r'<td class="(?:good|calm|bad|warn)"><b>(\d+)</b>', full.text)
    order = ("correct_certain", "correct_uncertain", "wrong_certain", "wrong_uncertain")
    assert [int(cell) for cell in cells] == [full.analysis.table[key] for key in order]


def test_metrics_stand_beside_the_baseline(full):
    text = words(full.text)
    assert f"measure this net {STOCK}" in text
    for key in ("nll", "brier", "aurc", "excess_aurc"):
        assert f"{full.analysis.metrics[key]:.3g}" in text


def test_decisions_are_told_with_what_they_promise(full):
    a, text = full.analysis, words(full.text)
    covered = a.decisions.sets[np.arange(200), a.labels]
    wrong = (a.predicted != a.labels)[a.decisions.accepted].sum()
    assert "hold the true class for 90.00% of images" in text
    assert f"Here it does for {100 * covered.mean():.2f}%" in text
    assert f"accepts {a.decisions.accepted.sum()} of 200 images" in text
    assert f"at most 10.00% of what it accepts is wrong. Here {wrong} are wrong" in text


def test_footer_tells_where_the_draws_come_from(full):
    assert "seed 7 " in words(full.text)
    assert "drawn 2026-11-16T08:00:00+00:00" in words(full.text)
    assert "command bayescaffe report draws.npz" in words(full.text)


def test_users_words_are_text_never_markup(full):
    assert "<b>dog</b>" not in full.text and "<img src=x" not in full.text
    assert "</script><i>" not in full.text and "plain <net>" not in full.text
    assert data_of(full.text)["class_names"] == NAMES
    assert TITLE in words(full.text)


def test_file_names_no_other_file_and_no_host(full):
    hosts = set(re.findall(r"https?://[^\s\"'<]+", full.text))
    assert hosts == {"http://www.w3.org/2000/svg"}  # a name, which browsers do not fetch
    assert not re.search(r'(src|href)="(?!#|data:)', full.text)
    assert "@import" not in full.text and "url(" not in full.text.replace("url(#", "")


def test_same_input_gives_the_same_bytes(draws, tmp_path):
    analysis = analyze(draws)
    for name in ("a", "b"):
        report(tmp_path / name, draws, analysis, images=pictures, curves={"x": CURVE})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_draws_of_an_image_are_those_of_the_file(draws, full):
    index, image = next(iter(data_of(full.text)["images"].items()))
    probabilities = draws.probabilities[:, int(index)]
    assert [one["class"] for one in image["classes"]] == list(range(5))
    for one in image["classes"]:
        c = one["class"]
        assert one["draws"] == np.rint(1000 * probabilities[:, c]).tolist()
        ends = full.analysis.lower[int(index), c], full.analysis.upper[int(index), c]
        assert one["interval"] == pytest.approx(ends, rel=1e-4)


def test_colours_are_turned_from_blue_green_red(draws, tmp_path):
    import base64
    import io

    from PIL import Image

    def blue(indices):
        return np.stack([np.full((3, 80, 80), [[[200]], [[10]], [[30]]], np.uint8)] * len(indices))

    text = report(tmp_path / "r.html", draws, analyze(draws), images=blue).read_text()
    encoded = re.search(r"data:image/jpeg;base64,([^\"]+)", text)[1]
    pixel = Image.open(io.BytesIO(base64.b64decode(encoded))).getpixel((40, 40))
    assert np.allclose(pixel, (30, 10, 200), atol=6)


def test_gallery_is_bounded_and_says_so(tmp_path):
    draws = make_draws(images=2000, strength=0.5, draws=10)
    analysis = analyze(draws)
    wrong = analysis.table["wrong_uncertain"]
    assert wrong > GALLERY
    path = report(
        tmp_path / "r.html", draws, analysis, images=lambda i: np.zeros((len(i), 1, 28, 28), "u1")
    )
    text = path.read_text()
    assert text.count('data-group="wrong and uncertain"') == GALLERY
    assert f"{GALLERY} of {wrong:,} wrong and uncertain" in words(text)
    assert path.stat().st_size < 1e6


@pytest.mark.parametrize("part", ["labels", "draws", "randomness", "mistakes", "everything"])
def test_missing_parts_are_left_out(part, tmp_path):
    draws = {
        "labels": lambda: make_draws(labels=False),
        "draws": lambda: make_draws(draws=1),
        "randomness": lambda: make_draws(draws=3, is_random=False),
        "mistakes": lambda: make_draws(images=3, strength=9, seed=2),
        "everything": lambda: Draws(make_draws(images=1, draws=1).probabilities, None, {}),
    }[part]()
    analysis = analyze(draws)
    text = words(report(tmp_path / "r.html", draws, analysis).read_text())
    has_intervals = part in ("labels", "mistakes")
    assert ("aleatoric" in text) == ("What the draws say" in text) == has_intervals
    assert ("How often it is wrong" in text) == (part not in ("labels", "everything"))
    assert ("wrong but certain" in text) == (part == "mistakes")
    assert ("When to ask a human" in text) == (part in ("draws", "randomness"))
    assert "Which layers" not in text and "How it learned" not in text


def test_input_that_does_not_fit_is_refused(draws, tmp_path):
    analysis = analyze(draws)

    def refuse(message, **options):
        with pytest.raises(BayesCaffeError, match=message):
            report(tmp_path / "r.html", draws, analysis, **options)

    refuse("class_names: 2 names, expected 5", class_names=["a", "b"])
    refuse("baselines: other: 30 images", baselines={"other": analyze(make_draws(images=30))})
    refuse(r"images of shape \(\d+, 2, 4, 4\)", images=lambda i: np.zeros((len(i), 2, 4, 4)))
    assert not list(tmp_path.iterdir())


def test_failure_leaves_the_former_report(draws, tmp_path, monkeypatch):
    path = tmp_path / "r.html"
    path.write_text("former")
    monkeypatch.setattr("bayescaffe.reporting.page._render", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        report(path, draws, analyze(draws))
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"] and path.read_text() == "former"


# The command


@pytest.fixture
def files(draws, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images = np.random.default_rng(0).integers(0, 256, (200, 1, 12, 12), np.uint8)
    np.save("images.npy", images)
    meta = {**draws.meta, "data": str(tmp_path / "images.npy")}
    save_draws("draws.npz", draws.probabilities, draws.labels, meta)
    save_draws("one.npz", draws.probabilities[:1], draws.labels, draws.meta)
    rows = [f"{i},{1 / (i + 1)},{0.1 if i % 2 else ''}" for i in range(9)]
    (tmp_path / "curve.csv").write_text("\n".join(["iteration,loss,test_error", *rows]) + "\n")
    return tmp_path


def test_command_finds_what_the_draws_know(files, capsys):
    assert cli.main(["report", "draws.npz", "--quiet"]) == 0
    assert capsys.readouterr().out.startswith("report.html: 0.")
    text = (files / "report.html").read_text()
    assert "<h1" in text and ">draws</h1>" in text
    assert "data:image/png" in text
    assert "command bayescaffe report draws.npz --out report.html" in words(text)


def test_command_takes_all_parts(files, capsys):
    options = "--baseline first=one.npz --ood draws.npz --curve me=curve.csv --level 0.8 --json"
    assert cli.main(["report", "draws.npz", *options.split(), "--title", "A B", "--out", "x"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["report"] == "x" and told["level"] == 0.8 and told["table"]["wrong_certain"] >= 0
    text = (files / "x").read_text()
    assert told["bytes"] == len(text.encode())
    for shown in ("80% credible interval", "first", "Out-of-distribution images", "How it learned"):
        assert shown in words(text)
    assert "--title 'A B' --level 0.8" in words(text)


def test_command_shows_the_layers_of_a_net(files, digits, capsys):
    pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
    from conftest import small_net

    (files / "net.prototxt").write_text(small_net(digits, "kl_weight: 0 tau_init: 0.25"))
    pycaffe.Net("net.prototxt", pycaffe.TEST).save("net.caffemodel")
    layers = ["--net", "net.prototxt", "--weights", "net.caffemodel"]
    assert cli.main(["report", "draws.npz", *layers]) == 0
    text = words((files / "report.html").read_text())
    table = text.split("layer weights τ biases τ of biases ")[1].split()
    rows = {table[k]: table[k + 2] for k in (0, 5, 10)}
    assert rows == {"conv": "0.25", "hidden": "0.25", "out": "0.25"}
    assert (
        "τ of each layer: conv 0.25; hidden 0.25; out 0.25" in (files / "report.html").read_text()
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("missing.npz", "missing.npz"),
        ("draws.npz --baseline one.npz", "--baseline one.npz: expected NAME=DRAWS"),
        ("draws.npz --curve none.csv", "none.csv"),
        ("draws.npz --data missing", "missing: no such file or folder"),
        ("draws.npz --data few.npy", "few.npy: 3 images, but the draws have 200"),
        ("draws.npz --out draws.npz", "--out draws.npz: the report reads this file"),
        ("draws.npz --out no/r.html", "there is no directory no"),
        ("draws.npz --net net.prototxt", "give both --net and --weights"),
        ("draws.npz --level 2", "level"),
    ],
)
def test_command_says_what_is_wrong(files, capsys, arguments, message):
    np.save("few.npy", np.zeros((3, 1, 12, 12), np.uint8))
    before = {path.name: path.read_bytes() for path in files.iterdir()}
    assert cli.main(["report", *arguments.split()]) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("bayescaffe: error: ") and message in error
    assert {path.name: path.read_bytes() for path in files.iterdir()} == before


def test_loaded_draws_give_the_same_report(files):
    draws = load_draws("draws.npz")
    path = report("r.html", draws, analyze(draws), class_names="abcde")
    assert data_of(path.read_text())["class_names"] == list("abcde")


# The page in a browser


@pytest.fixture
def open_page(browser):
    """Opens a page; fails the test if it complained or asked for anything."""
    contexts, complaints = [], []

    def open_it(path, width=1200, height=900, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        own = path.resolve().as_uri()
        page.on(
            "request",
            lambda request: (
                request.url.split("#")[0] == own
                or request.url.startswith("data:")
                or complaints.append(request.url)
            ),
        )
        page.goto(own)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def page(open_page, full):
    return open_page(full.path)


CHARTS = {
    "risk",
    "reliability",
    "histogram",
    "box",
    "tau",
    "test_error",
    "loss",
    "taus",
    "set-sizes",
    "class-coverage",
}


def test_every_chart_is_drawn(page):
    found = page.eval_on_selector_all(
        "[data-chart]:not([hidden])",
        """hosts => hosts.map(host => {
            const svg = host.querySelector("svg[role=img]"), box = svg.getBoundingClientRect();
            const marks = svg.querySelectorAll("path").length;
            const inside = [...svg.querySelectorAll("path, circle, rect, use, text")]
                .filter(node => !node.closest("defs, [clip-path]"))
                .map(node => node.getBoundingClientRect())
                .every(r => r.left >= box.left - 15 && r.right <= box.right + 15
                         && r.top >= box.top - 15 && r.bottom <= box.bottom + 15);
            return [host.dataset.chart, box.width, box.height, marks, inside, svg.outerHTML];
        })""",
    )
    assert {name for name, *_ in found} == CHARTS
    for name, width, height, marks, inside, svg in found:
        assert width > 300 and height > 100 and marks > 0, name
        assert inside, f"{name} draws outside of its frame"
        assert "NaN" not in svg and "Infinity" not in svg and "undefined" not in svg, name


def test_chart_shows_the_numbers_at_their_place(page, full):
    # The last point of the risk curve is the error, on the scale that the axis shows.
    found = page.evaluate(
        """() => {
            const svg = document.querySelector("[data-chart=risk] svg[role=img]");
            const paths = [...svg.querySelectorAll("path")];
            const ys = (path) => path.getAttribute("d").match(/[-\\d.]+/g)
                .filter((_, i) => i % 2).map(Number);
            const of = (colour) => paths.filter(
                (path) => path.getAttribute("style").includes(`stroke:var(--${colour})`));
            const level = of("line").map(ys).filter(([a, b]) => a === b).map(([a]) => a);
            const texts = [...svg.querySelectorAll("text")]
                .map(t => [t.textContent, +t.getAttribute("x")])
                .filter(([text]) => /^[\\d.]+%$/.test(text));
            const left = Math.min(...texts.map(([, x]) => x));
            return {
                // Another path of this colour is in the legend.
                curve: of("s1").map(ys).sort((a, b) => a.length - b.length).at(-1).at(-1),
                grid: level,
                ticks: texts.filter(([, x]) => x === left).map(([text]) => text),
                cursor: document.querySelector("#risk circle.cursor").getAttribute("cy"),
            };
        }"""
    )
    ticks = [float(text.rstrip("%")) / 100 for text in found["ticks"]]
    assert len(found["grid"]) == len(ticks) > 2

    def shown(y):
        per_unit = (ticks[1] - ticks[0]) / (found["grid"][1] - found["grid"][0])
        return ticks[0] + (float(y) - found["grid"][0]) * per_unit

    assert shown(found["curve"]) == pytest.approx(full.analysis.metrics["error"], abs=1e-3)
    # The slider's marker is on the curve, too.
    page.locator("#coverage").fill("200")
    cursor = page.locator("#risk circle.cursor").first.get_attribute("cy")
    assert shown(cursor) == pytest.approx(full.analysis.metrics["error"], abs=1e-3)
    assert shown(found["cursor"]) < shown(cursor)


def test_slider_tells_the_error_of_the_accepted(page, full):
    a = full.analysis
    slider, says = page.locator("#coverage"), page.locator("#coverage-says")
    for step in ("200", "100"):
        slider.fill(step)
        text = says.inner_text()
        accepted = int(re.search(r"([\d,]+) images with", text)[1].replace(",", ""))
        risk = (~a.correct[np.argsort(-a.confidence)[:accepted]]).mean()
        assert f"error {100 * risk:.2f}%" in text
        assert f"; {200 - accepted} go to a human" in text
        assert text.startswith(slider.get_attribute("aria-valuetext"))
    assert accepted < 200
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert slider.input_value() == "101" and says.inner_text() != text


def test_histogram_shows_the_uncertainty_that_is_asked_for(page):
    shown = page.locator("#histogram .plot:not([hidden]) svg[role=img]")
    before = shown.inner_html()
    assert "entropy" in shown.get_attribute("aria-label")
    button = page.get_by_role("button", name="Of the net (epistemic)")
    button.click()
    assert shown.count() == 1 and shown.inner_html() != before
    assert button.get_attribute("aria-pressed") == "true"
    assert page.locator("[data-show][aria-pressed=true]").count() == 1
    assert "epistemic" in shown.get_attribute("aria-label")


def shown_rows(page):
    return page.eval_on_selector_all(
        ".gallery tbody tr", "rows => rows.filter(r => !r.hidden).map(r => +r.dataset.index)"
    )


def test_sorting_changes_the_order_and_says_so(page, full):
    a = full.analysis
    page.get_by_role("button", name=re.compile("wrong and uncertain")).click()
    columns = {
        "entropy": a.entropy,
        "epistemic": a.epistemic,
        "true": a.labels,
        "index": np.arange(a.images),
        "confidence": a.confidence,
    }
    status = page.locator("#gallery-says")
    assert status.get_attribute("role") == "status"
    for key, values in columns.items():
        header = page.locator(f"th[data-key={key}]")
        ways, orders = [header.get_attribute("aria-sort")], []
        for _ in range(2):
            header.get_by_role("button").click()
            ways.append(header.get_attribute("aria-sort"))
            orders.append(shown_rows(page))
            sign = 1 if ways[-1] == "ascending" else -1
            assert (np.diff(sign * values[orders[-1]]) >= -1e-5).all(), (key, ways)
            assert f"{'lowest' if sign == 1 else 'highest'} first" in status.inner_text()
            assert page.locator("th[aria-sort]").count() == 1
        assert ways[0] is None and set(ways[1:]) == {"ascending", "descending"}
        assert len(orders[0]) > 3 and sorted(orders[0]) == sorted(orders[1])
        assert orders[0] != orders[1]


def test_filters_show_one_group_each(page, full):
    a = full.analysis
    groups = {
        "wrong but certain": ~a.correct & a.certain,
        "wrong and uncertain": ~a.correct & ~a.certain,
    }
    assert set(shown_rows(page)) == set(np.flatnonzero(groups["wrong but certain"]))
    for name, mask in groups.items():
        page.get_by_role("button", name=f"{name} ({mask.sum()})").click()
        assert set(shown_rows(page)) == set(np.flatnonzero(mask))


def expect_focus(element):
    """The focus comes back in an event of its own, a moment after the dialog is closed."""
    from playwright.sync_api import expect

    expect(element).to_be_focused()


@pytest.mark.parametrize("way", ["click", "Enter"])
def test_dialog_opens_closes_and_gives_the_focus_back(page, full, way):
    row = page.locator(".gallery tbody tr:not([hidden])").nth(1)
    index = int(row.get_attribute("data-index"))
    button = row.get_by_role("button")
    if way == "click":
        row.click()
    else:
        button.focus()
        page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    assert dialog.is_visible()
    true, predicted = full.analysis.labels[index], full.analysis.predicted[index]
    assert (
        dialog.get_by_role("heading").inner_text()
        == f"{NAMES[true]}, predicted as {NAMES[predicted]}"
    )
    assert f"{full.analysis.confidence[index]:.3f}" in dialog.inner_text()
    assert dialog.locator("#detail-plot svg circle").count() == 50 * 5
    assert dialog.locator("img").get_attribute("src") == row.locator("img").get_attribute("src")
    assert page.evaluate("document.activeElement.closest('dialog') !== null")
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    expect_focus(button)


def test_dialog_steps_through_the_images_shown(page):
    order = shown_rows(page)
    page.locator(".gallery tbody tr:not([hidden])").first.click()
    page.keyboard.press("ArrowRight")
    page.get_by_role("button", name="Next image").click()
    page.get_by_role("button", name="Previous image").click()
    page.get_by_role("button", name="Close").click()
    expect_focus(page.locator(f".gallery tr[data-index='{order[1]}'] button"))


# The WCAG contrast of every text with what is behind it, where it is below what is asked for.
LOW_CONTRAST = """() => {
    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    const parse = (colour) => {
        canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
        return [r, g, b, a / 255];
    };
    const over = ([r, g, b, a], [x, y, z]) => [a*r + (1-a)*x, a*g + (1-a)*y, a*b + (1-a)*z, 1];
    const behind = (node) => {
        if (!node) return [255, 255, 255, 1];
        const own = parse(getComputedStyle(node).backgroundColor);
        return own[3] === 1 ? own : over(own, behind(node.parentElement));
    };
    const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
        .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const low = [];
    let count = 0;
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const node = walker.currentNode.parentElement;
        if (!walker.currentNode.textContent.trim() || !node.getClientRects().length) continue;
        const style = getComputedStyle(node), back = behind(node);
        const ink = over(parse(node instanceof SVGElement ? style.fill : style.color), back);
        const [a, b] = [light(ink), light(back)].sort((x, y) => y - x);
        const ratio = (a + 0.05) / (b + 0.05), size = parseFloat(style.fontSize);
        const isLarge = size >= 24 || (size >= 18.6 && style.fontWeight >= 700);
        const text = node.textContent.slice(0, 30);
        count++;
        if (ratio < (isLarge ? 3 : 4.5)) low.push([node.tagName, text, ratio]);
    }
    return {low, count};
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_is_readable_in_both_themes(open_page, full, theme):
    page = open_page(full.path, color_scheme=theme)
    page.locator(".gallery tbody tr:not([hidden])").first.click()
    found = page.evaluate(LOW_CONTRAST)
    assert found["count"] > 200 and found["low"] == []


def test_theme_follows_the_system_until_the_button_is_pressed(open_page, full):
    def look(page):
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light, page = open_page(full.path), open_page(full.path, color_scheme="dark")
    button = page.get_by_role("button", name="Dark")
    dark = look(page)
    assert dark != look(light) and button.get_attribute("aria-pressed") == "true"
    button.click()
    assert look(page) == look(light) and button.get_attribute("aria-pressed") == "false"
    page.reload()
    assert look(page) == look(light)


def letters(page):
    """The height of letters in all charts, in pixels of the screen."""
    return page.eval_on_selector_all(
        "[data-chart]:not([hidden]) svg[role=img] text",
        """all => all.map(text => {
            const svg = text.ownerSVGElement;
            const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
            return parseFloat(getComputedStyle(text).fontSize) * scale;
        })""",
    )


def test_phone_has_no_sideways_scroll(open_page, full):
    page = open_page(full.path, 360, 740)
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) == 0
    for details in page.locator("details").all():
        details.locator("summary").click()
    assert page.evaluate(overflow) == 0
    for sizes in (letters(page), letters(open_page(full.path))):
        assert len(sizes) > 80 and min(sizes) > 11 and max(sizes) < 14
    page.locator(".gallery tbody tr:not([hidden])").first.click()
    box = page.get_by_role("dialog").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 360
    inner = "(d => d.scrollWidth - d.clientWidth)(document.querySelector('dialog'))"
    assert page.evaluate(inner) == 0


def test_structure_is_sound_for_screen_readers(page):
    levels = page.eval_on_selector_all(
        "h1, h2, h3, h4", "all => all.filter(h => !h.closest('dialog')).map(h => +h.tagName[1])"
    )
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))
    for landmark in ("banner", "navigation", "main", "contentinfo"):
        assert page.get_by_role(landmark).count() == 1
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("img, svg, button, input, table.gallery, section")]
            .filter(node => !node.closest("[aria-hidden=true], dialog"))
            .filter(node => !(node.alt || node.getAttribute("aria-label") || node.textContent.trim()
                || node.labels?.length || node.querySelector?.("img[alt]")))
            .map(node => node.outerHTML.slice(0, 80))"""
    )
    assert unnamed == []
    gallery = page.get_by_role("table", name="The images it got wrong")
    shown = len(shown_rows(page))
    assert gallery.get_by_role("row").count() == 1 + shown
    assert gallery.get_by_role("columnheader").count() == 6
    assert gallery.get_by_role("cell").count() == 6 * shown
    ids = page.eval_on_selector_all("[id]", "all => all.map(node => node.id)")
    assert len(ids) == len(set(ids))
    links = page.eval_on_selector_all(
        "nav a", "all => all.map(a => a.getAttribute('href').slice(1))"
    )
    assert len(links) == 11 and set(links) <= set(ids)


def test_keyboard_reaches_the_report_first_and_shows_where_it_is(page):
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the report")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert skip.bounding_box()["x"] >= 0
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_paper_is_white_and_has_no_controls(open_page, full):
    page = open_page(full.path, color_scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("header").is_visible()
    assert not page.locator("#coverage").is_visible()
    assert page.evaluate(LOW_CONTRAST)["low"] == []


def test_without_script_there_is_text_and_every_image(open_page, full):
    page = open_page(full.path, java_script_enabled=False)
    assert page.locator("h1").is_visible()
    charts = page.locator("[data-chart]")
    assert charts.count() > len(CHARTS)
    assert all(chart.bounding_box()["height"] > 100 for chart in charts.all())
    assert page.locator(".gallery tbody tr").first.is_visible()


@pytest.mark.parametrize("what", ["labels", "draws", "everything"])
def test_page_without_some_parts_works(open_page, tmp_path, what):
    draws = {
        "labels": lambda: make_draws(labels=False),
        "draws": lambda: make_draws(draws=1),
        "everything": lambda: Draws(make_draws(images=1, draws=1).probabilities, None, {}),
    }[what]()
    page = open_page(report(tmp_path / "r.html", draws, analyze(draws)))
    shown = page.locator("#histogram .plot:not([hidden]) svg[role=img]")
    assert shown.bounding_box()["height"] > 100
    page.locator(".gallery tbody tr").first.click()
    assert page.get_by_role("dialog").is_visible()
    page.keyboard.press("Escape")


def test_screenshot_for_the_readme(full, browser, tmp_path):
    from PIL import Image

    picture = tmp_path / "docs/report.png"
    command = [sys.executable, REPO / "scripts/screenshot.py", full.path, picture]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert Image.open(picture).size[0] == 1200
    assert picture.stat().st_size < 300_000
