"""`ioprof prove`: makes a change that a report advises, and shows what it brought beside what was
predicted.
"""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

import ioprof
from ioprof.cli.console import next_command, output, print_lines, reporter
from ioprof.report.texts.prediction import proof_lines


def prove(
    run: Annotated[
        Path, Argument(help="A run folder made by ioprof run or ioprof record.", show_default=False)
    ],
    command: Annotated[
        list[str] | None,
        Argument(help="Command to run instead of the recorded one, after --.", show_default=False),
    ] = None,
    advice: Annotated[
        int, Option(min=1, help="Number of the advice in the report of the run.")
    ] = 1,
    pairs: Annotated[
        int, Option(min=1, max=50, help="Pairs of runs: one without the change, one with it.")
    ] = 3,
    out: Annotated[
        Path | None, Option(help="Folder for the runs. Without it: RUN-proof.", show_default=False)
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace runs that are there already.")] = False,
    json: Annotated[
        bool, Option("--json", help="Print the result as JSON, and nothing else.")
    ] = False,
) -> int:
    """Run a recorded job again, without and with an advised change, and compare the gain with the
    predicted one.

    The runs alternate, and each pair is compared by itself, so that a change of the machine
    meanwhile matters little.

    A script of `ioprof record` is run 2 x --pairs times, in this folder; its output files are
    overwritten. ioprof gives the DataLoader that it trains from another num_workers,
    prefetch_factor, persistent_workers or pin_memory, and changes no file.
    """
    found = ioprof.prove(
        run, advice=advice, pairs=pairs, out=out, force=force, command=command, reporter=reporter
    )
    if json:
        output.file.write(found.to_json() + "\n")
        return 0
    print_lines(proof_lines(found))
    next_command("ioprof", "compare", *found.runs[:2])
    return 0
