"""Progress bars: on a terminal only, and without tqdm none."""

import io
import sys
import time

import pytest
from bayescaffe.common.progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def written(monkeypatch, stream, **options):
    """What a bar of 8 writes to `stream` while it goes to 2 and then on by 3."""
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressBar(8, "reading", **{"show": True, **options}) as bar:
        for step, count in ((bar.move_to, 2), (bar.advance, 3)):
            time.sleep(0.11)  # tqdm writes ten times a second
            step(count)
    return stream.getvalue()


def test_a_terminal_shows_the_bar(monkeypatch):
    text = written(monkeypatch, Terminal())
    assert "reading" in text and "2/8" in text and "5/8" in text and " images/s" in text
    assert text.endswith("\r")  # it is wiped out at the end


@pytest.mark.parametrize(
    ("stream", "options"),
    [(io.StringIO(), {}), (Terminal(), {"show": False}), (Terminal(), {"delay": 60})],
    ids=["no terminal", "not wanted", "too quick"],
)
def test_no_bar(monkeypatch, stream, options):
    assert written(monkeypatch, stream, **options) == ""


def test_without_tqdm_there_is_no_bar(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert written(monkeypatch, Terminal()) == ""
