"""`ioprof convert`: a dataset of images."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option, Typer

import ioprof
from ioprof.cli.console import next_command, output, reporter, say
from ioprof.cli.options import takes_options
from ioprof.converters import ConversionResult, Part, run_merge, run_relayout
from ioprof.converters.options import ConversionOptions, LayoutOptions

_AsJson = Annotated[bool, Option("--json", help="Print the manifest, path and seconds as JSON.")]

app = Typer(no_args_is_help=True)


@app.callback()
def convert() -> None:
    """Make a dataset in the layout, image size and encoding to be measured."""


@app.command()
@takes_options(ConversionOptions)
def imagenet(
    given: dict[str, Any],
    as_json: Annotated[
        bool,
        Option(
            "--json",
            help=(
                "Print the manifest (of a part: part.json), path, seconds and files passed over as"
                " JSON."
            ),
        ),
    ] = False,
) -> None:
    """Convert ImageNet, or any tree of class folders. Interrupted, the same command resumes."""
    result = ioprof.convert(**given, reporter=reporter)
    destination, part = given["destination"], given.get("part")
    _show(result, as_json, passed_over=result.passed_over)
    _say_quarantined(result)
    if part is None:
        next_command("ioprof", "run", destination)
    else:
        say(f"when all {Part.parse(part).parts} parts are done:")
        next_command("ioprof", "convert", "merge", destination)


@app.command()
def merge(
    destination: Annotated[
        Path, Argument(help="Dataset folder to make; its parts lie next to it.")
    ],
    workers: Annotated[int | None, Option(help="Processes (default: one per core).")] = None,
    force: Annotated[
        bool, Option("--force", help="Replace DESTINATION if ioprof made it, finished or not.")
    ] = False,
    as_json: _AsJson = False,
) -> None:
    """Merge the parts of a conversion: the same bytes as one machine makes. The parts are removed
    at the end.
    """
    result = run_merge(destination, force, workers, reporter)
    _show(result, as_json)
    _say_quarantined(result)
    next_command("ioprof", "run", destination)


@app.command()
@takes_options(LayoutOptions)
def dataset(
    given: dict[str, Any],
    source: Annotated[Path, Argument(help="Folder of a dataset that ioprof made.")],
    destination: Annotated[Path, Argument(help="Folder to make.")],
    as_json: _AsJson = False,
) -> None:
    """Store a dataset in another layout: the same records, the same digest, nothing is decoded.
    Interrupted, it resumes.
    """
    result = run_relayout(source, destination, LayoutOptions(**given), reporter)
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
