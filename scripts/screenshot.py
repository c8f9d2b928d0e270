"""Take the screenshot of a report for the README.

    .venv/bin/python scripts/screenshot.py report.html docs/report.png

Needs Chromium (`scripts/setup.sh --tests` installs it on Debian).
"""

import argparse
import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

SIZE = {"width": 1200, "height": 1930}
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_browser() -> str | None:
    return shutil.which("chromium")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("picture", type=Path)
    args = parser.parse_args()
    browser = find_browser()
    if browser is None:
        parser.error("there is no chromium on PATH")
    if not args.report.is_file():
        parser.error(f"{args.report}: no such file")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as profile:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=browser, args=FLAGS, viewport=SIZE, color_scheme="light"
        )
        page = context.new_page()
        page.goto(args.report.resolve().as_uri())
        shot = page.screenshot()
        context.close()
    args.picture.parent.mkdir(parents=True, exist_ok=True)
    # 256 colours look the same here, and the file is a third of the size.
    colours = Image.open(io.BytesIO(shot)).convert("RGB")
    few = colours.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE)
    few.save(args.picture, optimize=True)


if __name__ == "__main__":
    main()
