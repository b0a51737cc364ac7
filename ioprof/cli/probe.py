"""`ioprof probe`: what a path delivers at a dataset's own record sizes."""

import json as json_text
import math
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

import typer

from ioprof.cli.console import next_command, output, progress, say
from ioprof.cli.interrupts import handled
from ioprof.cli.material import Asked, Chosen, asked_for, chosen
from ioprof.cli.probed import show
from ioprof.cli.report import check_output
from ioprof.cli.sizes import parse_bytes
from ioprof.clock import wall_text
from ioprof.errors import CommandError
from ioprof.report.units import visible
from ioprof.storage import describe
from ioprof.storage.probe import MAX_CLIENTS, MAX_RECORD_BYTES, Allowance, Plan, Probe, clients_up_to
from ioprof.storage.probe.scratch import LEAST_BYTES, PREFIX
from ioprof.storage.wording import lines, plain

_LONGEST_S: Final = 24 * 3600.0
_MOST_BYTES: Final = 1 << 50


def probe(
    path: Annotated[Path, typer.Argument(help="A dataset, a folder with any files, or one large file.", show_default=False)],
    dataset: Annotated[
        Path | None,
        typer.Option(help="Read as this dataset's records are long; its own files where it lies at PATH.", show_default=False),
    ] = None,
    clients: Annotated[int, typer.Option(help="Largest number of concurrent clients: 1, 2, 4, ... up to it.")] = 16,
    seconds: Annotated[float, typer.Option(help="Time that all levels together may take.")] = 30.0,
    max_bytes: Annotated[str, typer.Option(help="Bytes that all levels together may read (units are powers of 1024).")] = "2G",
    record_bytes: Annotated[
        str | None, typer.Option(help="Length of a record where there is no dataset (default: 112K).", show_default=False)
    ] = None,
    scratch: Annotated[
        str | None, typer.Option(help="Write files of so many bytes in PATH, read those, and remove them.", show_default=False)
    ] = None,
    readahead: Annotated[bool, typer.Option("--readahead", help="Let the kernel read ahead of random ranges.")] = False,
    html: Annotated[Path | None, typer.Option(help="Also write figures and tables as one HTML file.", show_default=False)] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the HTML file if it is there.")] = False,
) -> int:
    """Measure what PATH delivers, cold: opening, reading in order, and reading records by chance, with one client and with many.

    Only reads, unless --scratch is given. The files that are read are dropped from this machine's page cache.
    """
    allowance = Allowance(_seconds(seconds), parse_bytes("--max-bytes", max_bytes, 1, _MOST_BYTES))
    plan = Plan(clients_up_to(_clients(clients)))
    record = parse_bytes("--record-bytes", record_bytes, 1, MAX_RECORD_BYTES) if record_bytes is not None else None
    written = parse_bytes("--scratch", scratch, LEAST_BYTES, _MOST_BYTES) if scratch is not None else None
    asked = asked_for(path, dataset, record, written, readahead)
    if html:
        check_output(html, force)
    with _removing_on_signals():
        found = _probed(asked, allowance, plan)
    if html:
        _write_html(found, html)
    if json:
        output.file.write(json_text.dumps(found, indent=1) + "\n")
    else:
        show(found)
        next_command(*_following(asked, html))
    return 0 if found["levels"] else 1


def _probed(asked: Asked, allowance: Allowance, plan: Plan) -> dict[str, Any]:
    import numpy as np

    from ioprof.storage.probe import probe as run

    began = wall_text(time.time_ns())
    for left in asked.path.glob(f"{PREFIX}*") if asked.scratch_bytes else ():
        say(f"{_readable(left)}: left by a probe that was killed, or is at work; if it was killed: rm -r {left.name}")
    with chosen(asked, np.random.default_rng()) as material:
        with progress(f"probing {_readable(asked.path)}", len(list(plan.steps()))) as advance:
            result = run(material.material, allowance, plan, lambda _: advance())
        return _facts(asked, allowance, material, result, began)


def _facts(asked: Asked, allowance: Allowance, material: Chosen, result: Probe, began: str) -> dict[str, Any]:
    storage = describe(asked.path)
    dataset = asked.dataset
    return {
        **result.facts(),
        "path": str(asked.path),
        "host": socket.gethostname(),
        "began": began,
        "read": material.what,
        "dataset": {"path": str(dataset.path), "name": dataset.name, "layout": dataset.layout} if dataset else None,
        "readahead": asked.readahead,
        "scratch_bytes": asked.scratch_bytes,
        "allowance": {"seconds": allowance.seconds, "bytes": allowance.bytes},
        "storage": plain(storage),
        "storage_lines": lines(storage),
    }


def _write_html(found: dict[str, Any], path: Path) -> None:
    from ioprof.report.probe_page import write_page  # the figures' library takes a second to load

    try:
        write_page(found, path)
    except OSError as error:
        raise CommandError(f"--html {path}: cannot be written ({error.strerror or error})", exit_code=1) from None
    say(f"wrote {_readable(path)}")


def _readable(path: Path) -> str:
    """The path as it can be printed anywhere: not every name is text."""
    return visible(os.fspath(path))


def _following(asked: Asked, html: Path | None) -> tuple[object, ...]:
    if not html:
        return ("ioprof", "probe", _readable(asked.path), "--html", "probe.html")
    return ("ioprof", "run", _readable(asked.dataset.path)) if asked.dataset else ("ioprof", "record", "--help")


@contextmanager
def _removing_on_signals() -> Iterator[None]:
    """Let a scheduler's and a closing terminal's signal end the block as Ctrl-C does, so that scratch files are removed."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with handled((signal.SIGTERM, signal.SIGHUP), interrupt):
        yield


def _clients(number: int) -> int:
    if not 1 <= number <= MAX_CLIENTS:
        raise CommandError(f"--clients {number}: give 1 to {MAX_CLIENTS}; more on one node only wait for each other")
    return number


def _seconds(number: float) -> float:
    if not math.isfinite(number) or not 0 < number <= _LONGEST_S:
        raise CommandError(f"--seconds {number}: give more than 0 and at most {_LONGEST_S:.0f}, such as 30")
    return number
