"""`ioprof extrapolate`: how long a whole training takes, from a recording of a part of it."""

import json as json_text
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

import ioprof
from ioprof.cli.console import next_command, output, print_lines
from ioprof.cli.options import takes_options
from ioprof.model.extrapolation.asked import Extrapolated
from ioprof.report.texts.epoch_statements import extrapolation_lines


@takes_options(Extrapolated)
def extrapolate(
    given: dict[str, Any],
    run: Annotated[Path, Argument(help="A run folder.", show_default=False)],
    json: Annotated[
        bool, Option("--json", help="Print the prediction as JSON, and nothing else.")
    ] = False,
) -> int:
    """Predict how long a whole training takes, from a recording of its first epochs or steps.

    The first epoch reads what is not in memory, later ones what does not fit there; validations and
    checkpoints come as often as in the recording. The range has the spread of the recorded steps
    and what the recording does not show; where it is wider than 15 %, the last line says what to
    record.
    """
    found = ioprof.extrapolate(run, **given)
    if json:
        output.file.write(json_text.dumps(found.to_dict(), indent=1, allow_nan=False) + "\n")
        return 0
    print_lines(extrapolation_lines(found))
    next_command("ioprof", "report", run)
    return 0
