"""The folders that an assistant may see: every path that it names lies in one of them, after all
links have been followed.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from ioprof.errors import CommandError
from ioprof.format.run_record.run_json import RUN_FILE
from ioprof.recording.run_folder import RUN_FILES
from ioprof.report.texts.units import clean

_MOST_CHARS: Final = 1000  # of a name that an assistant gives
_MOST_LEVELS: Final = 4
_MOST_SEEN: Final = 20_000
"""Folders that are looked at: a root may be a home directory."""


class Folders:
    """The roots that were given when the server was started."""

    def __init__(self, roots: Sequence[Path]) -> None:
        for root in roots:
            if not root.is_dir():
                raise CommandError(f"{root}: no such folder; give a folder that holds runs")
        self.roots: Final = tuple(root.resolve() for root in roots)

    def run(self, name: str) -> Path:
        """The run folder of that name, relative to a root or absolute.

        Raises CommandError for what is outside, whether it exists or not, for a file of the run
        that is a link to something outside, and for what is no run.
        """
        folder = next((found for found in self._within(name) if found.is_dir()), None)
        if folder is None or not (folder / RUN_FILE).is_file():
            raise CommandError(
                f"{clean(name, 200)}: no run folder in the folders of this server; call list_runs"
            )
        if any(not self._contains((folder / file).resolve()) for file in RUN_FILES):
            raise CommandError(
                f"{clean(name, 200)}: has a file that is a link to outside of the folders of this"
                " server; copy the run instead"
            )
        return folder

    def runs(self) -> Iterator[Path]:
        """The run folders at most four levels below the roots."""
        for root in self.roots:
            for folder in islice(_below(root, _MOST_LEVELS), _MOST_SEEN):
                if (folder / RUN_FILE).is_file() and self._contains(folder.resolve()):
                    yield folder

    def name(self, folder: Path) -> str:
        """How an assistant calls a run folder: relative to the only root, else absolute."""
        root = self.roots[0]
        is_relative = len(self.roots) == 1 and folder != root
        return str(folder.relative_to(root)) if is_relative else str(folder)

    def _within(self, name: str) -> list[Path]:
        if not name or len(name) > _MOST_CHARS or "\0" in name:
            raise CommandError("run: give the name of a run folder, as list_runs prints it")
        try:
            found = [(root / name).resolve() for root in self.roots]
        except (OSError, RuntimeError):  # a circle of links
            found = []
        within = [path for path in found if self._contains(path)]
        if not within:
            raise CommandError(
                f"{clean(name, 200)}: is outside of the folders that this server was started with;"
                " start it with that folder: ioprof mcp FOLDER"
            )
        return within

    def _contains(self, path: Path) -> bool:
        return any(path.is_relative_to(root) for root in self.roots)


def _below(folder: Path, levels: int) -> Iterator[Path]:
    """A folder and those in it, without hidden ones and links; folders of runs have none."""
    yield folder
    if levels == 0 or (folder / RUN_FILE).is_file():
        return
    try:
        inner = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:  # not permitted
        return
    for each in inner:
        if not each.name.startswith("."):
            yield from _below(each, levels - 1)
