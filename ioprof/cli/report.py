"""`ioprof report`: what a run waited for, as text, as one HTML file, or as JSON."""

from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from ioprof.cli.console import next_command, output, say, show_run
from ioprof.errors import CommandError
from ioprof.model.summary import with_gains
from ioprof.recording.keeping import seconds_of
from ioprof.recording.run_folder import PAGE
from ioprof.report.page.page_file import check_page_file, write_page_file
from ioprof.report.page.stalls import stretch_around
from ioprof.report.path_demand import path_statement, probed_path
from ioprof.report.run import Run
from ioprof.report.texts.gpu_time_statements import check_price
from ioprof.report.texts.units import visible


def report(
    run: Annotated[Path, Argument(help="A run folder.", show_default=False)],
    html: Annotated[
        Path | None,
        Option(
            help="Also write the report as one HTML file that opens offline.", show_default=False
        ),
    ] = None,
    around: Annotated[
        str | None,
        Option(
            help=(
                "With --html: have all spans around this step (68) or second (8.4s) in the page,"
                " and open it there."
            ),
            metavar="STEP|SECONDS",
            show_default=False,
        ),
    ] = None,
    gains: Annotated[
        bool, Option("--gains", help="Predict gains of a very large run too, which takes long.")
    ] = False,
    probe: Annotated[
        Path | None,
        Option(
            help="Output of ioprof probe --json: adds how many devices the probed path would feed.",
            show_default=False,
        ),
    ] = None,
    full: Annotated[
        bool, Option("--full", help="Print the whole report, not only what fits on one screen.")
    ] = False,
    markdown: Annotated[
        bool,
        Option(
            "--markdown",
            help=(
                "Print answer, evidence, advice and caveats in 60 lines of Markdown, and nothing"
                " else."
            ),
        ),
    ] = False,
    json: Annotated[
        bool, Option("--json", help="Print the summary as JSON, and nothing else.")
    ] = False,
    price_per_gpu_hour: Annotated[
        float | None,
        Option(
            help="What one GPU costs per hour: print what was lost to each cause in money too.",
            metavar="PRICE",
            show_default=False,
        ),
    ] = None,
    mtbf: Annotated[
        str | None,
        Option(
            help=(
                "Mean time between failures of the job (24h, 7d): adds how often it should save a"
                " checkpoint."
            ),
            metavar="TIME",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool, Option("--force", help="Replace a file that is not a page of ioprof.")
    ] = False,
) -> int:
    """Report what each step of a run waited for, and how reliable the answer is."""
    price = None if price_per_gpu_hour is None else check_price(price_per_gpu_hour)
    if price is not None and (json or markdown):
        raise CommandError(
            "--price-per-gpu-hour is for the report as text: leave --json and --markdown out"
        )
    if mtbf is not None and (json or markdown):
        raise CommandError(
            "--mtbf is for the report as text or page: leave --json and --markdown out"
        )
    mtbf_s = None if mtbf is None else seconds_of(mtbf)
    if mtbf is not None and not mtbf_s:
        raise CommandError(
            f"--mtbf {visible(mtbf)}: not a length of time; type it as --mtbf 24h (s, m, h or d)"
        )
    if html:
        check_page_file(html, force)
    elif around:
        raise CommandError("--around is for the page: give --html FILE too")
    probed = probed_path(probe) if probe else None
    recorded = with_gains(Run.load(run), gains)
    if html:
        from ioprof.report.page.html import write_html

        wanted = stretch_around(recorded.steps, around) if around else None
        write = partial(
            write_html,
            recorded.trace,
            recorded.steps,
            recorded.summary,
            wanted=wanted,
            probed=probed,
            mtbf_s=mtbf_s,
        )
        say(write_page_file(html, write))
    if markdown:
        if json or full:
            raise CommandError("--markdown is a form of its own: leave --json and --full out")
        from ioprof.report.texts.markdown import markdown as markdown_text

        output.file.write(markdown_text(recorded.summary, recorded.steps))
        return 0
    show_run(recorded, json, full, price, mtbf_s)
    if probed and not json:
        path = path_statement(recorded.summary.demand, probed)
        output.print(f"{path.label}: {path.text}", markup=False)
    if not json:
        if not html and (run / PAGE).is_file():
            say(f"page: {visible(str(run / PAGE))}")
        next_command("ioprof", "open", html or run)
    return 0
