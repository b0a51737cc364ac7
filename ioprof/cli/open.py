"""`ioprof open`: the page of a run, in a browser."""

import os
import shlex
import socket
from collections.abc import Mapping
from getpass import getuser
from pathlib import Path
from typing import Annotated

from typer import Argument

from ioprof.cli.console import output, say
from ioprof.errors import CommandError
from ioprof.recording.run_folder import PAGE
from ioprof.report.page.page_file import is_page

_DISPLAYS = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
"""Variables of the environment, of which one is set where a browser can be started."""


def open(  # noqa: A001 - the name of the command
    run: Annotated[Path, Argument(help="A run folder, or a page of ioprof.", show_default=False)],
) -> int:
    """Open the page of a run in the browser; where there is none, print its path and how to get it.

    A run folder without a page gets one.
    """
    if run.is_file() and not is_page(run):
        raise CommandError(f"{run}: is no page of ioprof; give a run folder: ioprof open RUN")
    page = (run if run.is_file() else _page_of(run)).absolute()
    output.print(str(page), markup=False)
    if any(os.environ.get(name) for name in _DISPLAYS):
        import webbrowser

        if webbrowser.open(page.as_uri()):
            return 0
    say(_hint(page, os.environ))
    return 0


def _page_of(folder: Path) -> Path:
    page = folder / PAGE
    if page.is_file():
        return page
    from ioprof.model.summary import with_gains
    from ioprof.report.page.html import write_html
    from ioprof.report.run import Run

    run = with_gains(Run.load(folder))
    say("making the page ...")
    try:
        write_html(run.trace, run.steps, run.summary, page)
    except OSError as error:
        how = shlex.join(["ioprof", "report", str(folder), "--html", PAGE])
        raise CommandError(
            f"{page}: cannot be written ({error.strerror}); write it elsewhere: {how}",
            exit_code=1,
        ) from None
    return page


def _hint(page: Path, environment: Mapping[str, str]) -> str:
    """What to type where no browser can be started."""
    if "SSH_CONNECTION" not in environment:
        return "no browser can be started here; the page opens offline in any: copy it to one"
    source = f"{getuser()}@{socket.gethostname()}:{shlex.quote(str(page))}"
    return f"no browser can be started here; on your own machine: scp {shlex.quote(source)} ."
