"""The file of an HTML page: checked before the work whose result it shows, written after it."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from ioprof.errors import CommandError
from ioprof.files import check_new_file, open_regular_file
from ioprof.report.page.markup import element
from ioprof.report.page.shell import GENERATOR
from ioprof.report.texts.units import visible

_BEGIN: Final = b"<!doctype html>\n<html"
_GENERATOR: Final = str(element("meta", name="generator", content=GENERATOR)).encode()
_HEAD_BYTES: Final = 1 << 14
"""In which the generator stands: before it comes the security policy, with a hash per script."""


def check_page_file(path: Path, force: bool) -> None:
    """CommandError unless the file of `--html` can be written to `path` later on.

    A page that ioprof wrote is replaced: it can be made again. Any other file only with `force`.
    """
    check_new_file(path, force or is_page(path), "report.html", "--html")


def is_page(path: Path) -> bool:
    """Whether a file is a page that ioprof wrote."""
    try:
        with open_regular_file(path) as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return head.startswith(_BEGIN) and _GENERATOR in head


def write_page_file(path: Path, write: Callable[[Path], None]) -> str:
    """Write an HTML file by `write(path)`, and return a line that says so; CommandError where that
    fails.
    """
    try:
        write(path)
    except OSError as error:
        raise CommandError(
            f"--html {path}: cannot be written ({error.strerror or error})", exit_code=1
        ) from None
    return f"wrote {visible(str(path))}"
