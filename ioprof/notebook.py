"""`%%ioprof`: a cell of a notebook, recorded.

    %load_ext ioprof

    %%ioprof --out runs/cell
    train()

The run is displayed as a card, and is `_` afterwards. It is recorded as by `ioprof.profile`: all
that hooks see in this process, and no reads.
"""

from pathlib import Path
from typing import Any

from ioprof import api
from ioprof.recording.command import default_run_folder
from ioprof.report.explore import Run


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext ioprof` calls."""
    from IPython.core.magic import register_cell_magic
    from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

    @register_cell_magic
    @magic_arguments()
    @argument("--out", type=Path, help="Run folder to make; the default is runs/TIME.")
    @argument("--force", action="store_true", help="Replace an earlier run in --out.")
    def ioprof(line: str, cell: str) -> Run | None:
        """Record the cell, and show what its training waited for."""
        given = parse_argstring(ioprof, line)
        return record_cell(shell, cell, given.out, given.force)


def record_cell(shell: Any, cell: str, out: Path | None, force: bool) -> Run | None:
    """Run a cell in `shell`, recorded, and return the run; None where the cell failed, whose error
    the shell has shown.
    """
    folder = out or default_run_folder({})
    with api.profile(folder, force):
        result = shell.run_cell(cell, store_history=False)
    return api.load(folder) if result.success else None
