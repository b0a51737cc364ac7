"""`ioprof export`: a run in the format of another program."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from ioprof.analysis.totals import code_of_causes, totals
from ioprof.cli.console import say
from ioprof.errors import CommandError
from ioprof.files import check_new_file
from ioprof.format.trace import Trace
from ioprof.interchange.formats import FORMATS
from ioprof.report.texts.units import visible


def export(
    run: Annotated[Path, Argument(help="A run folder.", show_default=False)],
    file: Annotated[
        Path | None,
        Argument(
            help="The file to write; default: the name of the run, in this folder.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        str | None,
        Option(
            help=(
                "perfetto, chrome (JSON), parquet, or speedscope (the stack samples); default: by"
                " the file's ending, such as .pftrace."
            ),
            metavar="FORMAT",
            show_default=False,
        ),
    ] = None,
    speedscope: Annotated[
        Path | None,
        Option(help="Short for --to speedscope FILE.", metavar="FILE", show_default=False),
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace the file if it is there.")] = False,
) -> int:
    """Write a run in the format of another program: all ranks in one file, with counters, and
    arrows from reads to steps.
    """
    if speedscope is not None:
        if to not in (None, "speedscope") or file is not None:
            raise CommandError(
                "--speedscope FILE is short for --to speedscope FILE: give one of them: ioprof"
                f" export {run} --to speedscope"
            )
        to, file = "speedscope", speedscope
    if to is None and file is not None:
        to = next((name for name, each in FORMATS.items() if file.name.endswith(each.ending)), None)
    if to not in FORMATS:
        asked = f"--to {visible(to)}: there is no such format" if to else "name a format"
        raise CommandError(f"{asked}: ioprof export {run} --to {'|'.join(FORMATS)}")
    path = Path(run.resolve().name + FORMATS[to].ending) if file is None else file
    check_new_file(path, force, "run.pftrace")
    trace = Trace.load(run)
    found = FORMATS[to].write(trace, path, str(run), lambda: code_of_causes(totals(trace)))
    say(f"wrote {visible(str(path))}: {found.text()}; {FORMATS[to].purpose}")
    return 0
