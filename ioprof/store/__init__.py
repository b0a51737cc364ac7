"""A store of runs: what was recorded of many runs besides their spans, in one SQLite database."""

from pathlib import Path

from ioprof.errors import CommandError


def refuse_file(folder: Path) -> None:
    """Raise `CommandError` if a store cannot be in `folder`, since that is a file."""
    if folder.exists() and not folder.is_dir():
        raise CommandError(f"--store {folder}: is a file; give the folder of a store")
