"""`ioprof convert`: a dataset from the images that there are."""

import json
import shlex
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from ioprof.cli.console import next_command, output, progress, say
from ioprof.converters import ConvertOptions, leftovers, plan_conversion
from ioprof.dataset import Dataset

_SHOWN_SUFFIXES: Final = 5

app = typer.Typer(no_args_is_help=True)


@app.callback()
def convert() -> None:
    """Make a dataset in the layout, image size and encoding to be measured."""


@app.command()
def imagenet(
    source: Annotated[
        Path, typer.Argument(help="Folder of class folders, or ILSVRC2012_img_train.tar, or the folder that holds it.")
    ],
    destination: Annotated[Path, typer.Argument(help="Folder to make.")],
    layout: Annotated[str, typer.Option(help="files: one per image. lmdb: one environment.")] = "files",
    image: Annotated[str, typer.Option(help="original: bytes untouched. rgb256: centre square, 256 x 256, RGB.")] = "original",
    encoding: Annotated[str | None, typer.Option(help="Of rgb256: jpeg (default) or raw.")] = None,
    quality: Annotated[int | None, typer.Option(help="Of JPEG, 1 to 95 (default 90).")] = None,
    split: Annotated[str, typer.Option(help="Which split this is; train or val folders in SOURCE are found by it.")] = "train",
    workers: Annotated[int | None, typer.Option(help="Processes (default: one per core).")] = None,
    shuffle_seed: Annotated[int, typer.Option(help="Decides the order of the records, the same in every layout.")] = 0,
    on_error: Annotated[
        str, typer.Option(help="For an image that cannot be used: fail, or quarantine (leave out and list).")
    ] = "fail",
    limit: Annotated[int | None, typer.Option(help="Only the first so many images of the shuffled order.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace DESTINATION if ioprof made it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest and what else there is to say as JSON.")] = False,
) -> None:
    """Convert ImageNet, or any tree of class folders."""
    options = ConvertOptions(layout, image, encoding, quality, split, workers, shuffle_seed, on_error, limit, force)
    started = time.perf_counter()
    conversion = plan_conversion(source, destination, options)
    passed_over = conversion.source.passed_over
    mention_leftovers(conversion.destination)
    with progress("convert", conversion.images) as advance:
        dataset = conversion.run(advance)
    seconds = time.perf_counter() - started
    if as_json:
        more = {"path": str(dataset.path), "seconds": seconds, "passed_over": passed_over}
        output.print_json(json.dumps({**dataset.manifest(), **more}))
    else:
        output.print(_result(dataset, seconds) + _passed_over(passed_over), markup=False)
    if dataset.quarantined:
        first = dataset.quarantined[0]
        say(f"quarantined {len(dataset.quarantined)} images, listed in dataset.json; the first: {first['name']}: {first['reason']}")
    next_command("ioprof", "run", destination)


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
