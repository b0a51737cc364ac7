"""`ioprof verify`: a dataset compared with its manifest."""

import json
import time
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from ioprof.cli.console import next_command, output, progress
from ioprof.converters import plan_verification


def verify(
    dataset: Annotated[Path, Argument(help="Folder of the dataset.")],
    deep: Annotated[
        bool, Option("--deep", help="Also decode every record, and compare labels with names.")
    ] = False,
    source: Annotated[
        Path | None,
        Option(help="Compare names and labels with what it was made from; implies --deep."),
    ] = None,
    workers: Annotated[int | None, Option(help="Processes (default: one per core).")] = None,
    as_json: Annotated[bool, Option("--json", help="Print what was found as JSON.")] = False,
) -> int:
    """Read a dataset and compare counts, bytes and digest with its manifest. Exits with 1 if
    anything is wrong.
    """
    started = time.perf_counter()
    verifier = plan_verification(dataset, deep, source, workers)
    with progress("verify", verifier.dataset.records) as advance:
        found = verifier.run(advance)
    seconds = time.perf_counter() - started
    if as_json:
        output.print_json(json.dumps({**found.to_dict(), "seconds": seconds}))
    else:
        output.print(found.text(seconds), markup=False)
    if found.is_good:
        next_command("ioprof", "run", dataset)
    return 0 if found.is_good else 1
