"""`ioprof whatif`: what a change of a recorded run would bring."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

import ioprof
from ioprof.cli.console import next_command, output
from ioprof.report.prediction import prediction_lines
from ioprof.train.copies import COPIES


def whatif(
    runs: Annotated[
        list[Path],
        Argument(help="A run folder; several are recordings of one job, of which the middle one counts.", show_default=False),
    ],
    workers: Annotated[
        int | None, Option(help="Loader workers per rank; 0: the rank loads its batches itself.", show_default=False)
    ] = None,
    prefetch: Annotated[int | None, Option(help="Batches per worker that are prepared ahead.", show_default=False)] = None,
    persistent_workers: Annotated[bool, Option("--persistent-workers", help="Keep workers from epoch to epoch.")] = False,
    batch: Annotated[int | None, Option(help="Samples per batch and rank.", show_default=False)] = None,
    cores: Annotated[float | None, Option(help="CPU cores per host that the job may use.", show_default=False)] = None,
    ranks: Annotated[int | None, Option(help="Ranks, on the hosts of the recorded ones.", show_default=False)] = None,
    cache: Annotated[
        str | None, Option(help="Page cache: warm (holds all data) or cold (holds nothing).", show_default=False)
    ] = None,
    layout: Annotated[str | None, Option(help="Layout of the dataset, which the run of --like read.", show_default=False)] = None,
    image: Annotated[
        str | None, Option(help="Form of the images, original or rgb256, which the run of --like read.", show_default=False)
    ] = None,
    like: Annotated[
        Path | None, Option(help="A short run of a converted sample: batches cost what they cost there.", show_default=False)
    ] = None,
    device: Annotated[str | None, Option(help="Another emulated device, e.g. emulated:h100.", show_default=False)] = None,
    copy: Annotated[str | None, Option(help=f"How batches get to the device: {', '.join(COPIES)}.", show_default=False)] = None,
    storage: Annotated[
        str | None, Option(help="Storage so many times as fast, e.g. 2x; none: no cost.", show_default=False)
    ] = None,
    decode: Annotated[str | None, Option(help="Decoding so many times as fast; none: no cost.", show_default=False)] = None,
    transform: Annotated[str | None, Option(help="Transforms so many times as fast; none: no cost.", show_default=False)] = None,
    collate: Annotated[str | None, Option(help="Collating so many times as fast; none: no cost.", show_default=False)] = None,
    compute: Annotated[str | None, Option(help="The model's computation so many times as fast.", show_default=False)] = None,
    exchange: Annotated[str | None, Option(help="The exchange of gradients so many times as fast.", show_default=False)] = None,
    json: Annotated[bool, Option("--json", help="Print the prediction as JSON, and nothing else.")] = False,
) -> int:
    """Predict what a change of a recorded job would bring, by replaying its recorded pipeline.

    Prints the error of the replay without any change first. Further recordings of the job show how much it differs from run to run.
    """
    found = ioprof.whatif(
        *runs, workers=workers, prefetch=prefetch, persistent_workers=persistent_workers, batch=batch, cores=cores, ranks=ranks,
        cache=cache, layout=layout, image=image, like=like, device=device, copy=copy, storage=storage, decode=decode,
        transform=transform, collate=collate, compute=compute, exchange=exchange,
    )  # fmt: skip
    if json:
        output.file.write(found.to_json() + "\n")
        return 0
    for line in prediction_lines(found):
        output.print(line, markup=False)
    next_command("ioprof", "report", runs[0])
    return 0
