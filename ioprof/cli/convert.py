"""`ioprof convert`: a dataset of images."""

from pathlib import Path
from typing import Annotated, Final

from typer import Argument, Option, Typer

import ioprof
from ioprof.cli.console import next_command, output, reporter, say
from ioprof.converters import ConversionResult, LayoutOptions, Part, run_merge, run_relayout

_SOURCE: Final = (
    "ILSVRC2012_img_train.tar or _val.tar, the folder that holds it, a folder of class folders, shards or records of other "
    "programs (docs/formats.md), or synthetic:N."
)
_LAYOUT: Final = (
    "files: one per image. lmdb: also read by DALI. webdataset: tars. parquet: Hugging Face's form. raw: one packed file."
)

_Destination = Annotated[Path, Argument(help="Folder to make.")]
_Labels = Annotated[str | None, Option(help='With files: ssv also writes lists of "path label".')]
_Shards = Annotated[int | None, Option(help="With lmdb: number of environments.")]
_Workers = Annotated[int | None, Option(help="Processes (default: one per core).")]
_Force = Annotated[bool, Option("--force", help="Replace DESTINATION if ioprof made it, finished or not.")]
_AsJson = Annotated[bool, Option("--json", help="Print the manifest, path and seconds as JSON.")]
_OnCorrupt = Annotated[
    str | None, Option(help="If libjpeg warns of a JPEG: fail, quarantine, or accept. Without it: as --on-error.")
]

app = Typer(no_args_is_help=True)


@app.callback()
def convert() -> None:
    """Make a dataset in the layout, image size and encoding to be measured."""


@app.command()
def imagenet(
    source: Annotated[str, Argument(help=_SOURCE)],
    destination: _Destination,
    layout: Annotated[str, Option(help=_LAYOUT)] = "files",
    image: Annotated[str, Option(help="original: the bytes unchanged. rgb256: centre square, 256 x 256, RGB.")] = "original",
    encoding: Annotated[str | None, Option(help="With rgb256: jpeg (default), png or raw.")] = None,
    quality: Annotated[int | None, Option(help="With JPEG: 1 to 95 (default 90).")] = None,
    size: Annotated[int | None, Option(help="With rgb256: another side than 256 pixels.")] = None,
    resize: Annotated[
        str | None, Option(help="With rgb256: square (default), or short: the shorter side is resized, nothing is cut off.")
    ] = None,
    crop: Annotated[
        str | None, Option(help="With rgb256: strict cuts the square out first: the filter looks at no pixel around it.")
    ] = None,
    split: Annotated[str, Option(help="Name of the split; also selects train or val in SOURCE.")] = "train",
    workers: _Workers = None,
    shuffle_seed: Annotated[int, Option(help="Seed of the order of the records, which is the same in every layout.")] = 0,
    on_error: Annotated[str, Option(help="If an image cannot be used: fail, or quarantine (leave it out and list it).")] = "fail",
    on_corrupt: _OnCorrupt = None,
    limit: Annotated[int | None, Option(help="Only the first N images of the shuffled order.")] = None,
    part: Annotated[
        str | None, Option(help="i/n: only part i of n, for job arrays; when all are done: ioprof convert merge.")
    ] = None,
    engine: Annotated[str, Option(help="local: processes on this machine. dask: a running Dask cluster.")] = "local",
    scheduler: Annotated[str | None, Option(help="With dask: the scheduler's address, or its scheduler file.")] = None,
    labels: _Labels = None,
    shards: _Shards = None,
    shard_bytes: Annotated[
        int | None, Option(help="With webdataset: largest tar, in bytes (default: 1 GiB); with parquet: 128 MiB.")
    ] = None,
    stripe: Annotated[bool, Option("--stripe", help="On Lustre: set the recommended stripe layout.")] = False,
    check_md5: Annotated[
        bool, Option("--check-md5", help="Compare the archives with the MD5 sums that ImageNet publishes.")
    ] = False,
    force: _Force = False,
    as_json: Annotated[
        bool, Option("--json", help="Print the manifest (of a part: part.json), path, seconds and files passed over as JSON.")
    ] = False,
) -> None:
    """Convert ImageNet, or any tree of class folders. Interrupted, the same command resumes."""
    result = ioprof.convert(
        source, destination, layout=layout, image=image, encoding=encoding, quality=quality, size=size, resize=resize, split=split,
        workers=workers, shuffle_seed=shuffle_seed, on_error=on_error, limit=limit, part=part, engine=engine, scheduler=scheduler,
        labels=labels, shards=shards, shard_bytes=shard_bytes, stripe=stripe, crop=crop, check_md5=check_md5, force=force,
        reporter=reporter, on_corrupt=on_corrupt,
    )  # fmt: skip
    _show(result, as_json, passed_over=result.passed_over)
    _say_quarantined(result)
    if part is None:
        next_command("ioprof", "run", destination)
    else:
        say(f"when all {Part.parse(part).parts} parts are done:")
        next_command("ioprof", "convert", "merge", destination)


@app.command()
def merge(
    destination: Annotated[Path, Argument(help="Dataset folder to make; its parts lie next to it.")],
    workers: _Workers = None,
    force: _Force = False,
    as_json: _AsJson = False,
) -> None:
    """Merge the parts of a conversion: the same bytes as one machine makes. The parts are removed at the end."""
    result = run_merge(destination, force, workers, reporter)
    _show(result, as_json)
    _say_quarantined(result)
    next_command("ioprof", "run", destination)


@app.command()
def dataset(
    source: Annotated[Path, Argument(help="Folder of a dataset that ioprof made.")],
    destination: _Destination,
    layout: Annotated[str, Option(help="files, lmdb, webdataset, parquet or raw.")],
    labels: _Labels = None,
    shards: _Shards = None,
    shard_bytes: Annotated[int | None, Option(help="With webdataset or parquet: largest shard, in bytes.")] = None,
    workers: _Workers = None,
    force: _Force = False,
    as_json: _AsJson = False,
) -> None:
    """Store a dataset in another layout: the same records, the same digest, nothing is decoded. Interrupted, it resumes."""
    result = run_relayout(source, destination, LayoutOptions(layout, shards, shard_bytes, labels, workers, force), reporter)
    _show(result, as_json)
    next_command("ioprof", "run", destination)


def _show(result: ConversionResult, as_json: bool, **more: object) -> None:
    if as_json:
        output.print_json(result.to_json(**more))
    else:
        output.print(result.text(), markup=False)


def _say_quarantined(result: ConversionResult) -> None:
    if text := result.quarantined_text():
        say(text)
