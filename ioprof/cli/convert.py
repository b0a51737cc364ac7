"""`ioprof convert`: a dataset from the images that there are."""

import json
import shlex
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from ioprof.cli.console import next_command, output, progress, say
from ioprof.converters import Conversion, ConvertOptions, Merging, Part, engine_for, leftovers, plan_conversion, plan_merge
from ioprof.converters.stripes import advice as stripe_advice
from ioprof.converters.stripes import is_lustre
from ioprof.dataset import Dataset

_SHOWN_SUFFIXES: Final = 5

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
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest and what else there is to say as JSON.")] = False,
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
    mention_leftovers(conversion.destination)
    _mention_stripes(conversion)
    dataset = _carried_out(conversion)
    seconds = time.perf_counter() - started
    if as_json:
        more = {"path": str(dataset.path), "seconds": seconds, "passed_over": passed_over}
        output.print_json(json.dumps({**dataset.manifest(), **more}))
    else:
        output.print(_result(dataset, seconds) + _passed_over(passed_over), markup=False)
    _mention_quarantined(dataset)
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
    dataset = _carried_out(merging)
    seconds = time.perf_counter() - started
    if as_json:
        output.print_json(json.dumps({**dataset.manifest(), "path": str(dataset.path), "seconds": seconds}))
    else:
        output.print(_result(dataset, seconds), markup=False)
    _mention_quarantined(dataset)
    next_command("ioprof", "run", destination)


def _carried_out(job: Conversion | Merging) -> Dataset:
    done = job.done()
    if done:
        say(f"goes on with what the same command has done before: {done} of {job.images} images")
    try:
        with progress("merge" if isinstance(job, Merging) else "convert", job.images) as advance:
            return job.run(advance)
    except KeyboardInterrupt:
        if job.done():
            say("what is done is kept: the same command goes on from there")
        raise


def _mention_stripes(conversion: Conversion) -> None:
    options = conversion.options
    if is_lustre(conversion.destination):
        stripes = stripe_advice(options.layout, options.shards)
        done = "set" if options.stripe else "--stripe sets, before anything is written"
        say(f"on Lustre: {shlex.join(stripes.command(conversion.destination))} ({stripes.reason}); {done}")


def _mention_quarantined(dataset: Dataset) -> None:
    if dataset.quarantined:
        first = dataset.quarantined[0]
        say(f"quarantined {len(dataset.quarantined)} images, listed in dataset.json; the first: {first['name']}: {first['reason']}")


def mention_leftovers(destination: Path) -> None:
    """Say what killed jobs left beside a destination."""
    for path in leftovers(destination):
        say(f"half-made by a job that was killed, or works on another host; remove it with: rm -r {shlex.quote(str(path))}")


def _passed_over(counts: dict[str, int]) -> str:
    if not counts:
        return ""
    kinds = [f"{suffix} {count}" for suffix, count in list(counts.items())[:_SHOWN_SUFFIXES]]
    more = ", ..." if len(counts) > _SHOWN_SUFFIXES else ""
    return f"; {sum(counts.values())} files passed over: not images by their names ({', '.join(kinds)}{more})"


def _result(dataset: Dataset, seconds: float) -> str:
    left_out = f", {len(dataset.quarantined)} quarantined" if dataset.quarantined else ""
    return (
        f"{dataset.path}: {dataset.records} records{left_out}, {dataset.bytes / 1e6:.1f} MB in {seconds:.1f} s "
        f"({dataset.records / seconds:.0f} images/s, {dataset.bytes / 1e6 / seconds:.1f} MB/s)"
    )
