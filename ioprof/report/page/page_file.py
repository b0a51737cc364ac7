"""The file of an HTML page: checked before the work whose result it shows, written after it."""

from collections.abc import Callable
from pathlib import Path

from ioprof.errors import CommandError
from ioprof.files import check_new_file
from ioprof.report.texts.units import visible


def check_page_file(path: Path, force: bool) -> None:
    """CommandError unless the file of `--html` can be written to `path` later on."""
    check_new_file(path, force, "report.html", "--html")


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
