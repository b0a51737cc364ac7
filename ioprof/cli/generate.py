"""`ioprof generate`: synthetic images."""

import json
import shlex
import time
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option, Typer

from ioprof.cli.console import next_command, output, progress, say
from ioprof.cli.options import takes_options
from ioprof.converters import GenerateOptions, leftovers, plan_generation

app = Typer(no_args_is_help=True)


@app.callback()
def generate() -> None:
    """Make synthetic images with the file sizes and the decoding cost of real ones."""


@app.command()
@takes_options(GenerateOptions)
def imagenet(
    given: dict[str, Any],
    destination: Annotated[Path, Argument(help="Folder to make.")],
    as_json: Annotated[
        bool, Option("--json", help="Print what was made, path and seconds as JSON.")
    ] = False,
) -> None:
    """Make JPEGs with the file sizes and dimensions of ImageNet's training set (ILSVRC2012)."""
    started = time.perf_counter()
    options = GenerateOptions(**given)
    generation = plan_generation(destination, options)
    for path in leftovers(generation.destination):
        say(
            "unfinished: its job was killed, or runs on another host; remove it with: rm -r"
            f" {shlex.quote(str(path))}"
        )
    with progress("generate", options.images) as advance:
        result = generation.run(advance)
    seconds = time.perf_counter() - started
    if as_json:
        output.print_json(
            json.dumps({**result.manifest(), "path": str(result.path), "seconds": seconds})
        )
    else:
        output.print(result.text(seconds), markup=False)
    next_command("ioprof", "convert", "imagenet", destination, f"{destination}-dataset")
