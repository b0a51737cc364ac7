"""`%%ioprof`: a cell of a notebook, recorded.

    %load_ext ioprof

    %%ioprof --out runs/cell
    train()

The run is displayed as a card, and is `_` afterwards. It is recorded as by `ioprof.profile`: all
that hooks see in this process, and no reads.
"""

import shlex
from argparse import ArgumentParser
from pathlib import Path
from typing import Any, Final

from ioprof import api
from ioprof.errors import CommandError
from ioprof.recording.command import default_run_folder
from ioprof.report.explore import Run

_OPTIONS: Final = ArgumentParser("%%ioprof", exit_on_error=False, add_help=False)
_OPTIONS.add_argument("--out", type=Path)
_OPTIONS.add_argument("--force", action="store_true")


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext ioprof` calls."""

    def ioprof(line: str, cell: str) -> Run | None:
        """%%ioprof [--out RUN] [--force]: record the cell, and show what its training waited
        for.
        """
        given, others = _OPTIONS.parse_known_args(shlex.split(line))
        if others:
            raise CommandError(f"%%ioprof {others[0]}: no such option; there are --out and --force")
        return record_cell(shell, cell, given.out, given.force)

    shell.register_magic_function(ioprof, "cell")


def record_cell(shell: Any, cell: str, out: Path | None, force: bool) -> Run | None:
    """Run a cell in `shell`, recorded, and return the run; None where the cell failed, whose error
    the shell has shown.
    """
    folder = out or default_run_folder({})
    with api.profile(folder, force):
        result = shell.run_cell(cell, store_history=False)
    return api.load(folder) if result.success else None
