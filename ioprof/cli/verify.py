"""`ioprof verify`: a dataset compared with its manifest."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from ioprof.cli.console import next_command, output, progress
from ioprof.converters import Verification, plan_verification


def verify(
    dataset: Annotated[Path, typer.Argument(help="Folder of the dataset.")],
    deep: Annotated[bool, typer.Option("--deep", help="Also decode every record, and compare labels with names.")] = False,
    source: Annotated[
        Path | None,
        typer.Option(help="Compare names and labels with what it was made from; implies --deep."),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes (default: one per core).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> int:
    """Read a dataset and compare counts, bytes and digest with its manifest. Exits with 1 if anything is wrong."""
    started = time.perf_counter()
    verifier = plan_verification(dataset, deep, source, workers)
    with progress("verify", verifier.dataset.records) as advance:
        found = verifier.run(advance)
    seconds = time.perf_counter() - started
    if as_json:
        output.print_json(json.dumps({**_keys(found), "seconds": seconds}))
    else:
        output.print(_text(found, seconds), markup=False)
    if found.is_good:
        next_command("ioprof", "run", dataset)
    return 0 if found.is_good else 1


def _keys(found: Verification) -> dict[str, object]:
    return {
        "path": str(found.dataset.path),
        "good": found.is_good,
        "deep": found.deep,
        "records": found.records,
        "bytes": found.bytes,
        "digest": found.digest,
        "labels_compared_with": found.labels_from,
        "num_problems": found.num_problems,
        "problems": found.problems,
    }


def _text(found: Verification, seconds: float) -> str:
    how = f"; every record decodes; labels are those of {found.labels_from}" if found.deep else ""
    head = f"{found.dataset.path}: {found.records} records, {found.bytes / 1e6:.1f} MB, read in {seconds:.1f} s"
    if found.is_good:
        return f"{head}: as the manifest says{how}"
    more = [f"  and {found.num_problems - len(found.problems)} more"] if found.num_problems > len(found.problems) else []
    return "\n".join([f"{head}: {found.num_problems} problems", *(f"  {line}" for line in found.problems), *more])
