"""`ioprof export`: a run in the format of another program."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

from typer import Argument, Option

from ioprof.cli.console import say
from ioprof.errors import CommandError
from ioprof.interchange.chrome import write_chrome
from ioprof.interchange.exported import Exported
from ioprof.interchange.perfetto import write_perfetto
from ioprof.interchange.speedscope import write_speedscope
from ioprof.interchange.tables import write_table
from ioprof.report.units import count, visible
from ioprof.trace import Trace

_WRITERS: Final[dict[str, tuple[str, str, Callable[[Trace, Path], Exported]]]] = {
    "perfetto": (".pftrace", "open it at https://ui.perfetto.dev", write_perfetto),
    "chrome": (".trace.json.gz", "open it at https://ui.perfetto.dev or chrome://tracing", write_chrome),
    "parquet": (".spans.parquet", "all spans in one table", write_table),
}
"""By format: the end of the file's name, what to do with it, and what writes it."""
FORMATS: Final = (*_WRITERS, "speedscope")
_SPEEDSCOPE_END: Final = ".speedscope.json"


def export(
    run: Annotated[Path, Argument(help="A run folder.", show_default=False)],
    file: Annotated[
        Path | None, Argument(help="The file to write; default: the name of the run, in this folder.", show_default=False)
    ] = None,
    to: Annotated[
        str | None,
        Option(help="perfetto, chrome (JSON), parquet, or speedscope (the stack samples).", metavar="FORMAT", show_default=False),
    ] = None,
    speedscope: Annotated[Path | None, Option(help="Short for --to speedscope FILE.", metavar="FILE", show_default=False)] = None,
    force: Annotated[bool, Option("--force", help="Replace the file if it is there.")] = False,
) -> int:
    """Write a run in the format of another program: all ranks in one file, with counters, and arrows from reads to steps."""
    if speedscope is not None:
        if to not in (None, "speedscope") or file is not None:
            raise CommandError(
                f"--speedscope FILE is short for --to speedscope FILE: give one of them: ioprof export {run} --to speedscope"
            )
        to, file = "speedscope", speedscope
    if to not in FORMATS:
        asked = f"--to {visible(to)}: there is no such format" if to else "name a format"
        raise CommandError(f"{asked}: ioprof export {run} --to {'|'.join(FORMATS)}")
    end = _SPEEDSCOPE_END if to == "speedscope" else _WRITERS[to][0]
    path = Path(run.resolve().name + end) if file is None else file
    _check(path, force)
    trace = Trace.load(run)
    if to == "speedscope":
        samples = write_speedscope(trace, path, str(run))
        say(f"wrote {visible(str(path))}: {count(samples)} samples; open it at https://www.speedscope.app")
        return 0
    _, purpose, write = _WRITERS[to]
    found = write(trace, path)
    more = [f"{count(number)} {what}" for number, what in ((found.counters, "counter values"), (found.arrows, "arrows")) if number]
    say(f"wrote {visible(str(path))}: {', '.join([f'{count(found.num_spans)} spans', *more])}; {purpose}")
    return 0


def _check(path: Path, force: bool) -> None:
    if path.is_dir():
        raise CommandError(f"{path}: is a folder; name a file in it: {path / 'run.pftrace'}")
    if not path.parent.is_dir():
        raise CommandError(f"{path}: there is no folder {path.parent}; make it first: mkdir -p {path.parent}")
    if path.exists() and not force:
        raise CommandError(f"{path}: is there already; replace it with --force or choose another name")
