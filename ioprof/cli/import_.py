"""`ioprof import`: traces of other profilers as a run, with the same analysis and page."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from ioprof.cli.console import messages, next_command, say
from ioprof.report.texts.units import count

app = Typer(
    help=(
        "Analyse traces that other profilers have recorded: the same report and page as for a run"
        " of ioprof."
    ),
    no_args_is_help=True,
)

Files = Annotated[list[Path], Argument(help="The files of one job.", show_default=False)]
Out = Annotated[Path, Option(help="Run folder to make.", show_default=False)]
Force = Annotated[bool, Option("--force", help="Replace an earlier run in --out.")]


@app.command("kineto")
def kineto(files: Files, out: Out, force: Force = False) -> int:
    """Traces of torch.profiler (.json, .json.gz), one of each rank: overlap, copies, collectives,
    steps.
    """
    return _import("kineto", files, out, force)


@app.command("dftracer")
def dftracer(files: Files, out: Out, force: Force = False) -> int:
    """Traces of DFTracer (.pfw, .pfw.gz): reads and opens, and what its Python library records of
    training.
    """
    return _import("dftracer", files, out, force)


@app.command("darshan")
def darshan(files: Files, out: Out, force: Force = False) -> int:
    """Logs of Darshan with DXT traces (DXT_ENABLE_IO_TRACE=1): every read."""
    return _import("darshan", files, out, force)


@app.command("nsys-sqlite")
def nsys_sqlite(files: Files, out: Out, force: Force = False) -> int:
    """Databases of Nsight Systems (nsys export --type sqlite): kernels, copies, collectives, and
    NVTX ranges named like steps.
    """
    return _import("nsys-sqlite", files, out, force)


def _import(format_: str, files: list[Path], out: Path, force: bool) -> int:
    from ioprof.importing import import_run
    from ioprof.report.texts.text import summary_text

    run = import_run(format_, files, out, force)
    say(
        f"imported {count(run.trace.num_spans)} spans of {count(len(files))}"
        f" file{'s' if len(files) > 1 else ''}"
    )
    messages.print(summary_text(run.summary), markup=False)
    next_command("ioprof", "open", out)
    return 0
