"""`ioprof convert`: a dataset from the images that there are."""

import json
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from ioprof.cli.console import next_command, output, progress, say
from ioprof.converters import (
    Conversion,
    ConvertOptions,
    MadePart,
    Merged,
    Merging,
    Part,
    engine_for,
    plan_conversion,
    plan_merge,
)
from ioprof.converters.destination import PART_NAME
from ioprof.converters.stripes import advice as stripe_advice
from ioprof.converters.stripes import is_lustre
from ioprof.dataset import MANIFEST_NAME, Dataset

_SHOWN_SUFFIXES: Final = 5

_Job = Conversion | Merging | Merged

app = typer.Typer(no_args_is_help=True)


@app.callback()
def convert() -> None:
    """Make a dataset in the layout, image size and encoding to be measured."""


@app.command()
def imagenet(
    source: Annotated[
        str,
        typer.Argument(
            help="ILSVRC2012_img_train.tar or _val.tar, the folder that holds it, a folder of class folders, "
            "Hugging Face parquet shards, or synthetic:N."
        ),
    ],
    destination: Annotated[Path, typer.Argument(help="Folder to make.")],
    layout: Annotated[str, typer.Option(help="files: one per image. lmdb: for DALI too. webdataset: tar shards.")] = "files",
    image: Annotated[str, typer.Option(help="original: bytes untouched. rgb256: centre square, 256 x 256, RGB.")] = "original",
    encoding: Annotated[str | None, typer.Option(help="Of rgb256: jpeg (default), png or raw.")] = None,
    quality: Annotated[int | None, typer.Option(help="Of JPEG, 1 to 95 (default 90).")] = None,
    size: Annotated[int | None, typer.Option(help="Of rgb256: another side than 256 pixels.")] = None,
    resize: Annotated[str | None, typer.Option(help="Of rgb256: square (default), or short: nothing is cut off.")] = None,
    split: Annotated[str, typer.Option(help="Which split this is; train or val in SOURCE is found by it.")] = "train",
    workers: Annotated[int | None, typer.Option(help="Processes (default: one per core).")] = None,
    shuffle_seed: Annotated[int, typer.Option(help="Decides the order of the records, the same in every layout.")] = 0,
    on_error: Annotated[
        str, typer.Option(help="For an image that cannot be used: fail, or quarantine (leave out and list).")
    ] = "fail",
    limit: Annotated[int | None, typer.Option(help="Only the first so many images of the shuffled order.")] = None,
    part: Annotated[str | None, typer.Option(help="i/n: only this part, for arrays of jobs; then: ioprof convert merge.")] = None,
    engine: Annotated[str, typer.Option(help="local: processes here. dask: a cluster that runs already.")] = "local",
    scheduler: Annotated[str | None, typer.Option(help="Of dask: the scheduler's address, or its file.")] = None,
    labels: Annotated[str | None, typer.Option(help='Of files: ssv also writes lists of "path label".')] = None,
    shards: Annotated[int | None, typer.Option(help="Of lmdb: environments.")] = None,
    shard_bytes: Annotated[int | None, typer.Option(help="Of webdataset: largest tar (default: 1 GiB).")] = None,
    stripe: Annotated[bool, typer.Option("--stripe", help="On Lustre: set the stripe layout that is advised.")] = False,
    check_md5: Annotated[bool, typer.Option("--check-md5", help="Compare the tars with the sums that ImageNet gives.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace DESTINATION if ioprof made it, finished or not.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the manifest, of a part part.json, and what else there is to say as JSON.")
    ] = False,
) -> None:
    """Convert ImageNet, or any tree of class folders. Killed, the same command goes on from where it was."""
    options = ConvertOptions(
        layout, image, encoding, quality, split, workers, shuffle_seed, on_error, limit, force,
        size=size, resize=resize, labels=labels, shards=shards, shard_bytes=shard_bytes, stripe=stripe, check_md5=check_md5,
    )  # fmt: skip
    wanted = Part.parse(part) if part else None
    started = time.perf_counter()
    conversion = plan_conversion(Path(source), destination, options, wanted, engine_for(engine, workers, scheduler))
    passed_over = conversion.source.passed_over
    _mention_stripes(conversion)
    made = _carried_out(conversion)
    seconds = time.perf_counter() - started
    if as_json:
        more = {"path": str(made.path), "seconds": seconds, "passed_over": passed_over}
        output.print_json(json.dumps({**made.manifest(), **more}))
    else:
        output.print(_result(made, conversion, seconds) + _passed_over(passed_over), markup=False)
    _mention_quarantined(made)
    if wanted is None:
        next_command("ioprof", "run", destination)
    else:
        say(f"when all {wanted.parts} parts are done:")
        next_command("ioprof", "convert", "merge", destination)


@app.command()
def merge(
    destination: Annotated[Path, typer.Argument(help="Folder to make of the parts beside it.")],
    workers: Annotated[int | None, typer.Option(help="Processes (default: one per core).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace DESTINATION if ioprof made it, finished or not.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest, path and seconds as JSON.")] = False,
) -> None:
    """Put the parts of a conversion together: the same bytes as of one machine. The parts are removed when that is done."""
    started = time.perf_counter()
    merging = plan_merge(destination, force, workers)
    made = _carried_out(merging)
    seconds = time.perf_counter() - started
    if as_json:
        output.print_json(json.dumps({**made.manifest(), "path": str(made.path), "seconds": seconds}))
    else:
        output.print(_result(made, merging, seconds), markup=False)
    _mention_quarantined(made)
    next_command("ioprof", "run", destination)


def _carried_out(job: _Job) -> Dataset | MadePart:
    if job.done_before:
        say(f"goes on with what the same command has done before: {job.done_before} of {job.images} images")
    try:
        with progress("convert" if isinstance(job, Conversion) else "merge", job.images) as advance:
            return job.run(advance)
    except KeyboardInterrupt:
        if job.done():
            say("what is done is kept: the same command goes on from there")
        raise


def _mention_stripes(conversion: Conversion) -> None:
    # Its stripes were chosen when its folder was made: what is there now has them.
    if conversion.done_before or not is_lustre(conversion.destination):
        return
    stored_as = conversion.stored_as
    stripes = stripe_advice(stored_as.layout, stored_as.shards)
    if stored_as.stripe:
        say(f"on Lustre: the new folder gets the stripes of {stripes.command} ({stripes.reason})")
    else:
        say(f"on Lustre: --stripe does {stripes.command} on the new folder, before anything is written ({stripes.reason})")


def _mention_quarantined(made: Dataset | MadePart) -> None:
    if made.quarantined:
        first, where = made.quarantined[0], MANIFEST_NAME if isinstance(made, Dataset) else PART_NAME
        say(f"quarantined {len(made.quarantined)} images, listed in {where}; the first: {first['name']}: {first['reason']}")


def _passed_over(counts: dict[str, int]) -> str:
    if not counts:
        return ""
    kinds = [f"{suffix} {count}" for suffix, count in list(counts.items())[:_SHOWN_SUFFIXES]]
    more = ", ..." if len(counts) > _SHOWN_SUFFIXES else ""
    return f"; {sum(counts.values())} files passed over: not images by their names ({', '.join(kinds)}{more})"


def _result(made: Dataset | MadePart, job: _Job, seconds: float) -> str:
    left_out = f", {len(made.quarantined)} quarantined" if made.quarantined else ""
    images = job.images - job.done_before
    rates = f"{images / seconds:.0f} images/s"
    rates += f", {made.bytes / 1e6 / seconds:.1f} MB/s" if not job.done_before else f" for the last {images}"
    return f"{made.path}: {made.records} records{left_out}, {made.bytes / 1e6:.1f} MB in {seconds:.1f} s ({rates})"
