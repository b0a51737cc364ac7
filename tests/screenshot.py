"""Takes the pictures of the documents in headless Chromium: the README's timeline, and those of
docs/pictures.md.

To update them after a change of what they show (`make docs` first):
.venv/bin/python tests/screenshot.py
"""

import html
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from PIL import Image
from repository import ROOT

import ioprof

PICTURE: Final = ROOT / "docs" / "timeline.png"
FOLDER: Final = ROOT / "docs" / "pictures"
RUNS: Final = ROOT / "tests" / "data" / "shown"
RUN: Final = RUNS / "files"
MOST_BYTES: Final = 150_000
SITE: Final = ROOT / "build" / "site" / "docs" / "guide.html"
_WIDTH: Final = 1180
_PHONE: Final = (390, 844)
_COLOURS: Final = 256
_TERMINAL: Final = "font: 14px/1.35 monospace; margin: 16px; width: 80ch"


@dataclass(frozen=True)
class Shot:
    """What is opened, and how."""

    name: str
    page: Path
    size: tuple[int, int] = (1280, 900)
    scheme: str = "light"
    ready: str = "body"
    part: str = ""
    """Of an element; empty: of the window."""


def take(browser: Any, run: Path, picture: Path) -> None:
    """Write the strip and the timeline of a run's page as a picture of few colours."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        ioprof.load(run).write_html(page)
        opened = _opened(browser, Shot("", page, (_WIDTH, 1000), ready=_DRAWN))
        top, bottom = (opened.locator(name).bounding_box() for name in ("#time", "#legend"))
        height = bottom["y"] + bottom["height"] + 12 - top["y"]
        data = opened.screenshot(
            clip={"x": 0, "y": top["y"], "width": _WIDTH, "height": height}, full_page=True
        )
        opened.close()
    _keep(data, picture)


def take_all(browser: Any, out: Path) -> list[str]:
    """Write the pictures of the documents, and name them; that of the site only if it is built."""
    taken = []
    with tempfile.TemporaryDirectory() as folder:
        for shot in _shots(Path(folder)):
            opened = _opened(browser, shot)
            shown = opened.locator(shot.part) if shot.part else opened
            _keep(shown.screenshot(), out / f"{shot.name}.png")
            opened.close()
            taken.append(shot.name)
    return taken


_DRAWN: Final = "html[data-ready='true']"


def _shots(folder: Path) -> Iterator[Shot]:
    page, compared = folder / "report.html", folder / "compare.html"
    ioprof.load(RUN).write_html(page)
    ioprof.compare(*(RUNS / name for name in ("files", "lmdb-rgb256"))).write_html(compared)
    terminal = folder / "terminal.html"
    terminal.write_text(f"<pre style='{_TERMINAL}'>{html.escape(_report_at_80())}</pre>")
    yield Shot("page", page, ready=_DRAWN)
    yield Shot("page-dark", page, scheme="dark", ready=_DRAWN)
    yield Shot("page-phone", page, _PHONE, ready=_DRAWN)
    yield Shot("page-phone-dark", page, _PHONE, "dark", ready=_DRAWN)
    yield Shot("compare", compared)
    yield Shot("compare-phone", compared, _PHONE)
    yield Shot("terminal", terminal, (800, 700), part="pre")
    yield Shot("notebook", _notebook(folder), ready=".plotly .main-svg")
    if SITE.exists():
        yield Shot("site", SITE, (1000, 900))


def _report_at_80() -> str:
    return subprocess.run(
        [sys.executable, "-m", "ioprof", "report", RUN.name],
        cwd=RUNS,
        env={**os.environ, "COLUMNS": "80"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def _notebook(folder: Path) -> Path:
    """The notebook of a timeline, executed and made HTML by nbconvert."""
    subprocess.run(
        [
            *(sys.executable, "-m", "nbconvert", "--to", "html", "--execute"),
            *("--output-dir", folder, ROOT / "notebooks" / "timeline_analysis.ipynb"),
        ],
        env={**os.environ, "IOPROF_RUN": str(RUN)},
        check=True,
        capture_output=True,
    )
    return folder / "timeline_analysis.html"


def _opened(browser: Any, shot: Shot) -> Any:
    width, height = shot.size
    opened = browser.new_page(
        viewport={"width": width, "height": height},
        color_scheme=shot.scheme,
        reduced_motion="reduce",
    )
    opened.goto(shot.page.as_uri())
    opened.locator(shot.ready).first.wait_for()
    opened.wait_for_timeout(300)
    return opened


def _keep(data: bytes, picture: Path) -> None:
    """Few colours, no dithering."""
    with Image.open(io.BytesIO(data)) as shot:
        shot.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(
            picture, optimize=True
        )


def chromium() -> str | None:
    """The browser of this machine."""
    return next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )


def main() -> None:
    """Take all of them."""
    from playwright.sync_api import sync_playwright

    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"]
        )
        take(browser, RUN, PICTURE)
        print(*take_all(browser, FOLDER))


if __name__ == "__main__":
    main()
