"""Which folder of this node is its own: schedulers name it in the environment, each in its own way."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ioprof.errors import CommandError

VARIABLES: Final = (
    ("SLURM_TMPDIR", "Slurm's folder of the job"),
    ("T4TMPDIR", "TSUBAME 4's local scratch"),
    ("T3TMPDIR", "TSUBAME 3's local scratch"),
    ("SGE_LOCALDIR", "AGE's local scratch"),
    ("PBS_LOCALDIR", "PBS's local scratch"),
    ("PBS_JOBFS", "PBS's job file system"),
    ("SGE_BEEONDDIR", "BeeOND, over the nodes of the job"),
    ("LOCAL_SCRATCH", "the site's local scratch"),
    ("TMPDIR", "TMPDIR"),
)
"""Names and what they are, best first. Sources: the handbooks of Slurm sites, TSUBAME, ABCI, NCI and CSC."""

GIVEN: Final = "given"
"""How a folder was found that somebody named."""

BEEOND: Final = ("/beeond", "/mnt/beeond", "/data/beeond")
"""Where BeeOND is mounted by its own default and by sites that name no variable; only a mount of `beegfs` there counts."""


@dataclass(frozen=True)
class NodeLocal:
    """A folder of this node."""

    folder: Path
    by: str
    """How it was found."""


def node_local(environment: Mapping[str, str], kind_of: Callable[[Path], str], type_of: Callable[[Path], str]) -> NodeLocal:
    """The best folder of this node's own; `CommandError` says what was looked at, and why it would not do.

    `kind_of` is `ioprof.storage`'s word for what a folder lies on (`local`, `shared`, `memory`, `unknown`), `type_of` its file
    system. Memory is taken where there is nothing else: what lies there is taken from the job.
    """
    refused = []
    in_memory: NodeLocal | None = None
    for candidate in _candidates(environment, type_of):
        why = _unusable(candidate.folder)
        kind = "" if why else kind_of(candidate.folder)
        if not why and (kind in ("local", "unknown") or "BeeOND" in candidate.by):
            return candidate
        if not why and kind == "memory" and in_memory is None:
            in_memory = candidate
        refused.append(f"{candidate.by}: {candidate.folder} {why or f'is {kind}'}")
    if in_memory is not None:
        return in_memory
    looked = ", ".join(name for name, _ in VARIABLES)
    found = "; ".join(refused) if refused else f"none of {looked} is set, and no BeeOND is mounted"
    raise CommandError(f"--stage-to auto: no folder of this node's own ({found}); name one: --stage-to /local/scratch")


def _candidates(environment: Mapping[str, str], type_of: Callable[[Path], str]) -> Iterator[NodeLocal]:
    for name, words in VARIABLES:
        if folder := environment.get(name):
            yield NodeLocal(Path(folder), f"{name} ({words})" if words != name else name)
    for place in map(Path, BEEOND):
        if place.is_dir() and type_of(place) == "beegfs":
            yield NodeLocal(place, f"BeeOND at {place}")


def _unusable(folder: Path) -> str | None:
    if not folder.is_absolute() or not folder.is_dir():
        return "is no folder"
    return None if os.access(folder, os.W_OK | os.X_OK) else "cannot be written"
