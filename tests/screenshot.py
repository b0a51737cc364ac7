"""Takes the picture of the README: the timeline of the page of a recorded run, in headless
Chromium.

To update it after a change of the page:
.venv/bin/python tests/screenshot.py tests/data/shown/files
"""

import io
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from PIL import Image
from repository import ROOT

import ioprof

PICTURE: Final = ROOT / "docs" / "timeline.png"
MOST_BYTES: Final = 150_000
_WIDTH: Final = 1180
_COLOURS: Final = 128


def take(browser: Any, run: Path, picture: Path) -> None:
    """Write the strip and the timeline of a run's page as a picture of few colours."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        ioprof.load(run).write_html(page)
        opened = browser.new_page(
            viewport={"width": _WIDTH, "height": 1000},
            color_scheme="light",
            reduced_motion="reduce",
        )
        opened.goto(page.as_uri())
        opened.wait_for_selector("html[data-ready='true']")
        opened.wait_for_timeout(300)
        top, bottom = (opened.locator(name).bounding_box() for name in ("#time", "#legend"))
        height = bottom["y"] + bottom["height"] + 12 - top["y"]
        data = opened.screenshot(
            clip={"x": 0, "y": top["y"], "width": _WIDTH, "height": height}, full_page=True
        )
        opened.close()
    with Image.open(io.BytesIO(data)) as shot:
        shot.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(
            picture, optimize=True
        )


def chromium() -> str | None:
    """The browser of this machine."""
    return next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )


if __name__ == "__main__":
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        take(
            playwright.chromium.launch(
                executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"]
            ),
            Path(sys.argv[1]),
            PICTURE,
        )
