"""`ioprof whatif`: what a change of a recorded run would bring."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

import ioprof
from ioprof.cli.console import next_command, output, print_lines
from ioprof.cli.options import takes_options
from ioprof.model.changes import Change
from ioprof.report.texts.prediction import prediction_lines


@takes_options(Change)
def whatif(
    given: dict[str, Any],
    runs: Annotated[
        list[Path],
        Argument(
            help="A run folder, or several of the same job: then the median run is used.",
            show_default=False,
        ),
    ],
    storage: Annotated[
        str | None,
        Option(
            help="Speed-up factor of storage, e.g. 2x; none: reads take no time.",
            show_default=False,
        ),
    ] = None,
    decode: Annotated[
        str | None,
        Option(help="Speed-up factor of decoding; none: it takes no time.", show_default=False),
    ] = None,
    transform: Annotated[
        str | None,
        Option(help="Speed-up factor of transforms; none: they take no time.", show_default=False),
    ] = None,
    collate: Annotated[
        str | None,
        Option(help="Speed-up factor of collating; none: it takes no time.", show_default=False),
    ] = None,
    compute: Annotated[
        str | None,
        Option(help="Speed-up factor of the model's computation.", show_default=False),
    ] = None,
    exchange: Annotated[
        str | None,
        Option(help="Speed-up factor of the gradient exchange.", show_default=False),
    ] = None,
    json: Annotated[
        bool, Option("--json", help="Print the prediction as JSON, and nothing else.")
    ] = False,
) -> int:
    """Predict what a change of a recorded job would bring, by replaying its recorded pipeline.

    Prints the error of the replay without any change first. Further recordings of the job show how
    much it differs from run to run.
    """
    speeds: dict[str, Any] = {
        "storage": storage,
        "decode": decode,
        "transform": transform,
        "collate": collate,
        "compute": compute,
        "exchange": exchange,
    }
    first, *others = runs
    found = ioprof.whatif(first, *others, **given, **speeds)
    if json:
        output.file.write(found.to_json() + "\n")
        return 0
    print_lines(prediction_lines(found))
    next_command("ioprof", "report", runs[0])
    return 0
