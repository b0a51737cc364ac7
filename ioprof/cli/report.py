"""`ioprof report`: what a run waited for, as text, as one HTML file, or as JSON."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from ioprof.analysis.run import Run
from ioprof.cli.console import next_command, output, say
from ioprof.cli.run_output import show_run
from ioprof.errors import CommandError
from ioprof.replay.summary import with_gains
from ioprof.report.page.stalls import around_moment, around_step
from ioprof.report.path_demand import path_statement, probed_path
from ioprof.report.units import visible


def report(
    run: Annotated[Path, Argument(help="A run folder.", show_default=False)],
    html: Annotated[
        Path | None, Option(help="Also write the report as one HTML file that opens offline.", show_default=False)
    ] = None,
    around: Annotated[
        str | None,
        Option(
            help="With --html: have all spans around this step (68) or second (8.4s) in the page, and open it there.",
            metavar="STEP|SECONDS",
            show_default=False,
        ),
    ] = None,
    gains: Annotated[bool, Option("--gains", help="Predict gains of a very large run too, which takes long.")] = False,
    probe: Annotated[
        Path | None,
        Option(help="Output of ioprof probe --json: how many of the devices that path would feed.", show_default=False),
    ] = None,
    full: Annotated[bool, Option("--full", help="Print all that is known, not only what fits on one screen.")] = False,
    markdown: Annotated[
        bool, Option("--markdown", help="Print answer, evidence, advice and caveats in 60 lines of Markdown, and nothing else.")
    ] = False,
    json: Annotated[bool, Option("--json", help="Print the summary as JSON, and nothing else.")] = False,
    force: Annotated[bool, Option("--force", help="Replace the HTML file if it is there.")] = False,
) -> int:
    """Report what each step of a run waited for, and how reliable the answer is."""
    if html:
        check_html_path(html, force)
    elif around:
        raise CommandError("--around is for the page: give --html FILE too")
    probed = probed_path(probe) if probe else None
    recorded = with_gains(Run.load(run), gains)
    if html:
        from ioprof.report.html import write_html

        wanted = _stretch(recorded, around) if around else None
        write_page(html, lambda path: write_html(recorded.trace, recorded.steps, recorded.summary, path, wanted, probed))
    if markdown:
        if json or full:
            raise CommandError("--markdown is a form of its own: leave --json and --full out")
        from ioprof.report.markdown import markdown as markdown_text

        output.file.write(markdown_text(recorded.summary, recorded.steps))
        return 0
    show_run(recorded, json, full)
    if probed and not json:
        path = path_statement(recorded.summary.demand, probed)
        output.print(f"{path.label}: {path.text}", markup=False)
    if not json:
        next_command(*(("ioprof", "compare", run, "OTHER_RUN") if html else ("ioprof", "report", run, "--html", "report.html")))
    return 0


def _stretch(run: Run, around: str) -> tuple[int, int]:
    """The part of the run that is meant; CommandError says what is wrong with it."""
    if around.isdecimal():
        found = around_step(run.steps, int(around))
        if found is None:
            steps = run.steps["step"]
            known = f"its steps are {min(steps)} to {max(steps)}" if len(steps) else "it has no steps"
            raise CommandError(f"--around {around}: the run has no such step; {known}; seconds are written with an s: {around}s")
        return found
    if not re.fullmatch(r"\d*\.?\d+s?|\d+\.s?", around):
        raise CommandError(f"--around {visible(around)}: is neither a step (68) nor a second of the run (8.4s)")
    return around_moment(run.steps, round(float(around.removesuffix("s")) * 1e9))


def check_html_path(path: Path, force: bool) -> None:
    """CommandError unless a file can be written to `path` later on."""
    if path.is_dir():
        raise CommandError(f"--html {path}: is a folder; name a file in it: --html {path / 'report.html'}")
    if not path.parent.is_dir():
        raise CommandError(f"--html {path}: there is no folder {path.parent}; make it first: mkdir -p {path.parent}")
    if path.exists() and not force:
        raise CommandError(f"--html {path}: is there already; replace it with --force or choose another name")


def write_page(path: Path, write: Callable[[Path], None]) -> None:
    """Write an HTML file by `write(path)`, and say so; CommandError where that fails."""
    try:
        write(path)
    except OSError as error:
        raise CommandError(f"--html {path}: cannot be written ({error.strerror or error})", exit_code=1) from None
    say(f"wrote {visible(str(path))}")
