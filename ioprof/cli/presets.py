"""`ioprof presets`: published trainings that `ioprof run --preset` makes."""

import json as json_text
from dataclasses import asdict
from typing import Annotated

from rich import box
from rich.table import Table
from rich.text import Text
from typer import Option

from ioprof.cli.console import next_command, output
from ioprof.train.presets import load_preset, preset_names


def presets(
    json: Annotated[
        bool, Option("--json", help="Print all settings as JSON, and nothing else.")
    ] = False,
) -> int:
    """List the presets with their sources."""
    found = [load_preset(name) for name in preset_names()]
    if json:
        output.file.write(json_text.dumps([asdict(preset) for preset in found], indent=1) + "\n")
        return 0
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("preset", "year", "what, and its source"):
        table.add_column(heading, overflow="fold")
    for preset in found:
        text = Text(preset.about).append(f"\n{preset.source}", style="dim")
        if preset.undated:
            text.append(f"\nyear unknown: {preset.undated}", style="dim")
        table.add_row(
            Text(preset.name), Text("unknown" if preset.year is None else str(preset.year)), text
        )
    output.print(table)
    next_command("ioprof", "run", "--preset", found[0].name, "--steps", 50)
    return 0
