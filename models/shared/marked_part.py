"""A part of a page between two marks. A command replaces it and leaves the rest as it is."""

from dataclasses import dataclass
from pathlib import Path

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import scratch_file


@dataclass(frozen=True)
class MarkedPart:
    """The part that one command writes."""

    start: str
    end: str

    def replace(self, page: Path, text: str) -> None:
        """Put `text` between the marks of the page."""
        head, mark, rest = page.read_text().partition(self.start)
        _, end, tail = rest.partition(self.end)
        if not mark or not end:
            raise BayesCaffeError(
                f"{page}: has no marks {self.start} and {self.end} to write between"
            )
        with scratch_file(page) as scratch:
            scratch.write_text("\n\n".join([head + self.start, text, self.end + tail]))

    def of(self, page: Path) -> str:
        """The marks of a page and what is between them; empty if it has none, or is not there."""
        text = page.read_text() if page.exists() else ""
        _, mark, rest = text.partition(self.start)
        inner, end, _ = rest.partition(self.end)
        return f"{mark}{inner}{end}" if mark and end else ""


KL_RULE = MarkedPart("<!-- measured by models/kl_rule -->", "<!-- end -->")
SUITE = MarkedPart("<!-- measured by models/suite -->", "<!-- end of models/suite -->")
