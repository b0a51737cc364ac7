"""`ioprof convert`: a dataset of images."""

import json
from pathlib import Path
from typing import Annotated, Final

import typer

import ioprof
from ioprof.cli.console import next_command, output, reporter, say
from ioprof.converters import ConversionResult, LayoutOptions, Part, run_merge, run_relayout
from ioprof.converters.manifests import PART_NAME
from ioprof.dataset import MANIFEST_NAME, Dataset

_SHOWN_SUFFIXES: Final = 5
_SOURCE: Final = (
    "ILSVRC2012_img_train.tar or _val.tar, the folder that holds it, a folder of class folders, shards or records of other "
    "programs (docs/formats.md), or synthetic:N."
)
_LAYOUT: Final = (
    "files: one per image. lmdb: also read by DALI. webdataset: tars. parquet: Hugging Face's form. raw: one packed file."
)

_OnCorrupt = Annotated[
    str | None, typer.Option(help="If libjpeg warns of a JPEG: fail, quarantine, or accept. Without it: as --on-error.")
]

app = typer.Typer(no_args_is_help=True)


@app.callback()
def convert() -> None:
    """Make a dataset in the layout, image size and encoding to be measured."""


@app.command()
def imagenet(
    source: Annotated[str, typer.Argument(help=_SOURCE)],
    destination: Annotated[Path, typer.Argument(help="Folder to make.")],
    layout: Annotated[str, typer.Option(help=_LAYOUT)] = "files",
    image: Annotated[str, typer.Option(help="original: the bytes unchanged. rgb256: centre square, 256 x 256, RGB.")] = "original",
    encoding: Annotated[str | None, typer.Option(help="With rgb256: jpeg (default), png or raw.")] = None,
    quality: Annotated[int | None, typer.Option(help="With JPEG: 1 to 95 (default 90).")] = None,
    size: Annotated[int | None, typer.Option(help="With rgb256: another side than 256 pixels.")] = None,
    resize: Annotated[
        str | None, typer.Option(help="With rgb256: square (default), or short: the shorter side is resized, nothing is cut off.")
    ] = None,
    crop: Annotated[
        str | None, typer.Option(help="With rgb256: strict cuts the square out first: the filter looks at no pixel around it.")
    ] = None,
    split: Annotated[str, typer.Option(help="Name of the split; also selects train or val in SOURCE.")] = "train",
    workers: Annotated[int | None, typer.Option(help="Processes (default: one per core).")] = None,
    shuffle_seed: Annotated[int, typer.Option(help="Seed of the order of the records, which is the same in every layout.")] = 0,
    on_error: Annotated[
        str, typer.Option(help="If an image cannot be used: fail, or quarantine (leave it out and list it).")
    ] = "fail",
    on_corrupt: _OnCorrupt = None,
    limit: Annotated[int | None, typer.Option(help="Only the first N images of the shuffled order.")] = None,
    part: Annotated[
        str | None, typer.Option(help="i/n: only part i of n, for job arrays; when all are done: ioprof convert merge.")
    ] = None,
    engine: Annotated[str, typer.Option(help="local: processes on this machine. dask: a running Dask cluster.")] = "local",
    scheduler: Annotated[str | None, typer.Option(help="With dask: the scheduler's address, or its scheduler file.")] = None,
    labels: Annotated[str | None, typer.Option(help='With files: ssv also writes lists of "path label".')] = None,
    shards: Annotated[int | None, typer.Option(help="With lmdb: number of environments.")] = None,
    shard_bytes: Annotated[
        int | None, typer.Option(help="With webdataset: largest tar, in bytes (default: 1 GiB); with parquet: 128 MiB.")
    ] = None,
    stripe: Annotated[bool, typer.Option("--stripe", help="On Lustre: set the recommended stripe layout.")] = False,
    check_md5: Annotated[
        bool, typer.Option("--check-md5", help="Compare the archives with the MD5 sums that ImageNet publishes.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace DESTINATION if ioprof made it, finished or not.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the manifest (of a part: part.json), path, seconds and files passed over as JSON.")
    ] = False,
) -> None:
    """Convert ImageNet, or any tree of class folders. Interrupted, the same command resumes."""
    result = ioprof.convert(
        source, destination, layout=layout, image=image, encoding=encoding, quality=quality, size=size, resize=resize, split=split,
        workers=workers, shuffle_seed=shuffle_seed, on_error=on_error, limit=limit, part=part, engine=engine, scheduler=scheduler,
        labels=labels, shards=shards, shard_bytes=shard_bytes, stripe=stripe, crop=crop, check_md5=check_md5, force=force,
        reporter=reporter, on_corrupt=on_corrupt,
    )  # fmt: skip
    if as_json:
        _print_json(result, passed_over=result.passed_over)
    else:
        output.print(result_text(result), markup=False)
    _mention_quarantined(result)
    if part is None:
        next_command("ioprof", "run", destination)
    else:
        say(f"when all {Part.parse(part).parts} parts are done:")
        next_command("ioprof", "convert", "merge", destination)


@app.command()
def merge(
    destination: Annotated[Path, typer.Argument(help="Dataset folder to make; its parts lie next to it.")],
    workers: Annotated[int | None, typer.Option(help="Processes (default: one per core).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace DESTINATION if ioprof made it, finished or not.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest, path and seconds as JSON.")] = False,
) -> None:
    """Merge the parts of a conversion: the same bytes as one machine makes. The parts are removed at the end."""
    result = run_merge(destination, force, workers, reporter)
    if as_json:
        _print_json(result)
    else:
        output.print(result_text(result), markup=False)
    _mention_quarantined(result)
    next_command("ioprof", "run", destination)


@app.command()
def dataset(
    source: Annotated[Path, typer.Argument(help="Folder of a dataset that ioprof made.")],
    destination: Annotated[Path, typer.Argument(help="Folder to make.")],
    layout: Annotated[str, typer.Option(help="files, lmdb, webdataset, parquet or raw.")],
    labels: Annotated[str | None, typer.Option(help='With files: ssv also writes lists of "path label".')] = None,
    shards: Annotated[int | None, typer.Option(help="With lmdb: number of environments.")] = None,
    shard_bytes: Annotated[int | None, typer.Option(help="With webdataset or parquet: largest shard, in bytes.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes (default: one per core).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace DESTINATION if ioprof made it, finished or not.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest, path and seconds as JSON.")] = False,
) -> None:
    """Store a dataset in another layout: the same records, the same digest, nothing is decoded. Interrupted, it resumes."""
    result = run_relayout(source, destination, LayoutOptions(layout, shards, shard_bytes, labels, workers, force), reporter)
    if as_json:
        _print_json(result)
    else:
        output.print(result_text(result), markup=False)
    next_command("ioprof", "run", destination)


def result_text(result: ConversionResult) -> str:
    """One line: records, bytes, rates of this run, and the files that were passed over."""
    made, images = result.dataset, result.images - result.resumed_images
    if result.was_done:
        return f"{made.path}: {made.records} records, {made.bytes / 1e6:.1f} MB"
    left_out = f", {len(made.quarantined)} quarantined" if made.quarantined else ""
    rates = f"{images / result.seconds:.0f} images/s"
    rates += f" for the last {images}" if result.resumed_images else f", {made.bytes / 1e6 / result.seconds:.1f} MB/s"
    text = f"{made.path}: {made.records} records{left_out}, {made.bytes / 1e6:.1f} MB in {result.seconds:.1f} s ({rates})"
    if not result.passed_over:
        return text
    kinds = [f"{suffix} {count}" for suffix, count in list(result.passed_over.items())[:_SHOWN_SUFFIXES]]
    more = ", ..." if len(result.passed_over) > _SHOWN_SUFFIXES else ""
    passed_over = f"{sum(result.passed_over.values())} files passed over: not images by their names"
    return f"{text}; {passed_over} ({', '.join(kinds)}{more})"


def _print_json(result: ConversionResult, **more: object) -> None:
    keys = {**result.dataset.manifest(), "path": str(result.path), "seconds": result.seconds, **more}
    output.print_json(json.dumps(keys))


def _mention_quarantined(result: ConversionResult) -> None:
    quarantined = result.dataset.quarantined
    if quarantined:
        first, where = quarantined[0], MANIFEST_NAME if isinstance(result.dataset, Dataset) else PART_NAME
        say(f"quarantined {len(quarantined)} images, listed in {where}; the first: {first['name']}: {first['reason']}")
