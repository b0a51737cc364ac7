"""Runs of the files of other profilers: read, put on one clock, analysed and saved like a
recording.
"""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ioprof.errors import CommandError
from ioprof.interchange import darshan, dftracer, kineto, nsys
from ioprof.interchange.imported import MOST_FILES, Imported, to_trace
from ioprof.masking import masked_command
from ioprof.model.summary import with_gains
from ioprof.recording.run_folder import check_output, create_output
from ioprof.recording.run_writer import write_run_folder
from ioprof.report.run import Run
from ioprof.report.texts.units import visible

_MOST_BYTES: Final = 64 << 30
"""Of one file."""
_READERS: Final[dict[str, tuple[Callable[[Sequence[Path]], list[Imported]], str]]] = {
    "kineto": (kineto.read_kineto, kineto.CLOCK),
    "dftracer": (dftracer.read_dftracer, dftracer.CLOCK),
    "darshan": (darshan.read_darshan, darshan.CLOCK),
    "nsys-sqlite": (nsys.read_nsys, nsys.CLOCK),
}
"""By format, which is also the verb of `ioprof import`: what reads its files, and what their times
are."""


def import_run(format_: str, files: Sequence[Path], out: Path, force: bool) -> Run:
    """Make the run folder `out` of the files of one job. Raises `CommandError` for files that
    cannot be used.
    """
    check_output(out, force)
    _check(files)
    read, clock_method = _READERS[format_]
    try:
        command = shlex.join(masked_command(["ioprof", "import", format_, *map(str, files)]))
        trace = to_trace(read(files), out.resolve().name, command[:4000], clock_method)
        run = with_gains(Run.of(trace, out), is_asked=False)
    except MemoryError:
        raise CommandError(
            f"{files[0]}: takes more memory than there is; import fewer files"
        ) from None
    create_output(out, force)
    write_run_folder(run, out)
    return run


def _check(files: Sequence[Path]) -> None:
    if len(files) > MOST_FILES:
        raise CommandError(
            f"{len(files):,} files are more than {MOST_FILES:,}; import a part of them"
        )
    if len({path.resolve() for path in files}) < len(files):
        raise CommandError("a file is named twice; name each once")
    for path in files:
        shown = visible(str(path))
        if not path.exists():
            raise CommandError(f"{shown}: no such file")
        if not path.is_file():
            raise CommandError(f"{shown}: is not a file")
        if path.stat().st_size > _MOST_BYTES:
            raise CommandError(f"{shown}: is larger than {_MOST_BYTES >> 30} GiB; split it")
