"""`ioprof report`: what a run waited for, as text, as one HTML file, or as JSON."""

from pathlib import Path
from typing import Annotated

import typer

from ioprof.cli.console import next_command, say
from ioprof.cli.making import Recorded
from ioprof.cli.session import show
from ioprof.errors import CommandError
from ioprof.trace import Trace


def report(
    run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    html: Annotated[
        Path | None, typer.Option(help="Also write the report as one HTML file that opens offline.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the HTML file if it is there.")] = False,
) -> int:
    """Say what each step of a run waited for, and how far the answer can be trusted."""
    if html:
        check_output(html, force)
    recorded = Recorded.of(Trace.load(run))
    if html:
        _write_html(recorded, html)
    show(recorded, json)
    if not json:
        next_command(*(("ioprof", "compare", run, "OTHER_RUN") if html else ("ioprof", "report", run, "--html", "report.html")))
    return 0


def check_output(path: Path, force: bool) -> None:
    """CommandError unless a file can be written to `path` later on."""
    if path.is_dir():
        raise CommandError(f"--html {path}: is a folder; name a file in it: --html {path / 'report.html'}")
    if not path.parent.is_dir():
        raise CommandError(f"--html {path}: there is no folder {path.parent}; make it first: mkdir -p {path.parent}")
    if path.exists() and not force:
        raise CommandError(f"--html {path}: is there already; replace it with --force or choose another name")


def _write_html(recorded: Recorded, path: Path) -> None:
    from ioprof.report.html import write_html  # the figures' library takes a second to load

    try:
        write_html(recorded.trace, recorded.steps, recorded.summary, path)
    except OSError as error:
        raise CommandError(f"--html {path}: cannot be written ({error.strerror or error})", exit_code=1) from None
    say(f"wrote {path}")
