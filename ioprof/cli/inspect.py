"""`ioprof inspect`: what a folder holds that ioprof made, and what storage any path lies on."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from ioprof.cli.console import next_command, output, print_lines
from ioprof.inspection import inspect_path


def inspect(
    path: Annotated[
        Path,
        Argument(
            help=(
                "A dataset, a part of one, what an interrupted conversion or run left, or any path."
            )
        ),
    ],
    as_json: Annotated[bool, Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Describe a dataset or a run by its manifest, and the storage that any file or folder lies on.

    To check a dataset against its data: ioprof verify.
    """
    found = inspect_path(path)
    if as_json:
        output.print_json(found.to_json())
        return
    print_lines(found.lines())
    if str(path).isprintable():  # else it could not be typed
        next_command(*found.next_command)
