"""`ioprof import`: traces of other profilers as a run, with the same analysis and page."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from ioprof.cli.console import messages, next_command, say
from ioprof.errors import CommandError
from ioprof.interchange.imported import MOST_FILES, Imported, to_trace
from ioprof.report.units import count, visible

app = typer.Typer(
    help="Analyse traces that other profilers have recorded: the same report and page as for a run of ioprof.", no_args_is_help=True
)

Files = Annotated[list[Path], typer.Argument(help="The files of one job.", show_default=False)]
Out = Annotated[Path, typer.Option(help="Run folder to make.", show_default=False)]
Force = Annotated[bool, typer.Option("--force", help="Replace an earlier run in --out.")]
_LARGEST: Final = 64 << 30


@app.command("kineto")
def kineto(files: Files, out: Out, force: Force = False) -> int:
    """Traces of torch.profiler (.json, .json.gz), one of each rank: overlap, copies, collectives, steps."""
    from ioprof.interchange import kineto as format_

    return _import("kineto", files, out, force, format_.read_kineto, format_.CLOCK)


@app.command("dftracer")
def dftracer(files: Files, out: Out, force: Force = False) -> int:
    """Traces of DFTracer (.pfw, .pfw.gz): reads and opens, and what its Python library records of training."""
    from ioprof.interchange import dftracer as format_

    return _import("dftracer", files, out, force, format_.read_dftracer, format_.CLOCK)


@app.command("darshan")
def darshan(files: Files, out: Out, force: Force = False) -> int:
    """Logs of Darshan with DXT traces (DXT_ENABLE_IO_TRACE=1): every read."""
    from ioprof.interchange import darshan as format_

    return _import("darshan", files, out, force, format_.read_darshan, format_.CLOCK)


@app.command("nsys-sqlite")
def nsys_sqlite(files: Files, out: Out, force: Force = False) -> int:
    """Databases of Nsight Systems (nsys export --type sqlite): kernels, copies, collectives, and NVTX ranges named like steps."""
    from ioprof.interchange import nsys as format_

    return _import("nsys-sqlite", files, out, force, format_.read_nsys, format_.CLOCK)


def _import(
    kind: str, files: Sequence[Path], out: Path, force: bool, read: Callable[[Sequence[Path]], list[Imported]], clock_method: str
) -> int:
    from ioprof.analysis.run import Run
    from ioprof.recording.run_folder import check_output, create_output
    from ioprof.recording.run_writer import write_run_folder
    from ioprof.replay.summary import with_gains
    from ioprof.report.text import summary_text

    check_output(out, force)
    _check(files)
    try:
        found = read(files)
        command = shlex.join(["ioprof", "import", kind, *map(str, files)])
        trace = to_trace(found, out.resolve().name, command[:4000], clock_method)
        run = with_gains(Run.of(trace, out), is_asked=False)
    except MemoryError:
        raise CommandError(f"{files[0]}: takes more memory than there is; import fewer files") from None
    create_output(out, force)
    write_run_folder(run, out)
    say(f"imported {count(trace.num_spans)} spans of {count(len(files))} file{'s' if len(files) > 1 else ''}")
    messages.print(summary_text(run.summary), markup=False)
    next_command("ioprof", "report", out, "--html", "report.html")
    return 0


def _check(files: Sequence[Path]) -> None:
    if len(files) > MOST_FILES:
        raise CommandError(f"{len(files):,} files are more than {MOST_FILES:,}; import a part of them")
    if len({path.resolve() for path in files}) < len(files):
        raise CommandError("a file is named twice; name each once")
    for path in files:
        shown = visible(str(path))
        if not path.exists():
            raise CommandError(f"{shown}: no such file")
        if not path.is_file():
            raise CommandError(f"{shown}: is not a file")
        if path.stat().st_size > _LARGEST:
            raise CommandError(f"{shown}: is larger than {_LARGEST >> 30} GiB; split it")
