"""`ioprof generate`: synthetic images."""

import json
import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from ioprof.cli.console import next_command, output, progress, say
from ioprof.converters import GenerateOptions, Synthetic, leftovers, plan_generation

app = typer.Typer(no_args_is_help=True)


@app.callback()
def generate() -> None:
    """Make synthetic images with the file sizes and the decoding cost of real ones."""


@app.command()
def imagenet(
    destination: Annotated[Path, typer.Argument(help="Folder to make.")],
    images: Annotated[int, typer.Option(help="Number of images.")] = 1000,
    classes: Annotated[int | None, typer.Option(help="Number of classes (default: 10).")] = None,
    seed: Annotated[int, typer.Option(help="Seed; the same seed makes the same images.")] = 0,
    form: Annotated[str, typer.Option(help="tree: class folders. tars: ILSVRC2012_img_train.tar.")] = "tree",
    workers: Annotated[int | None, typer.Option(help="Processes (default: one per core).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace DESTINATION if ioprof made it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was made, path and seconds as JSON.")] = False,
) -> None:
    """Make JPEGs with the file sizes and dimensions of ImageNet's training set (ILSVRC2012)."""
    started = time.perf_counter()
    generation = plan_generation(destination, GenerateOptions(images, classes, seed, form, workers, force))
    for path in leftovers(generation.destination):
        say(f"unfinished: its job was killed, or runs on another host; remove it with: rm -r {shlex.quote(str(path))}")
    with progress("generate", images) as advance:
        result = generation.run(advance)
    seconds = time.perf_counter() - started
    if as_json:
        output.print_json(json.dumps({**result.manifest(), "path": str(result.path), "seconds": seconds}))
    else:
        output.print(_result(result, seconds), markup=False)
    next_command("ioprof", "convert", "imagenet", destination, f"{destination}-dataset")


def _result(result: Synthetic, seconds: float) -> str:
    return (
        f"{result.path}: {result.images} images in {result.classes} classes, {result.bytes / 1e6:.1f} MB in {seconds:.1f} s "
        f"({result.images / seconds:.0f} images/s)"
    )
