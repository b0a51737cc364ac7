"""Finds this node's local scratch folder: schedulers name it in environment variables, each in its
own.
"""

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
"""Variables and their meaning, best first. Sources: the handbooks of Slurm sites, TSUBAME, ABCI,
NCI and CSC."""

GIVEN: Final = "given"
"""`NodeLocal.by` of a folder that the user named."""

BEEOND: Final = ("/beeond", "/mnt/beeond", "/data/beeond")
"""Mount points of BeeOND: its default, and those of sites that set no variable; only a mount of
`beegfs` there counts."""


@dataclass(frozen=True)
class NodeLocal:
    """A folder of this node."""

    folder: Path
    by: str
    """How it was found."""


def node_local(
    environment: Mapping[str, str], kind_of: Callable[[Path], str], type_of: Callable[[Path], str]
) -> NodeLocal:
    """The best local folder of this node; `CommandError` lists the candidates, and why each was
    rejected.

    `kind_of` returns the storage kind of a folder (`local`, `shared`, `memory`, `unknown`),
    `type_of` its file system. A folder in memory is used only where there is no other: its content
    takes memory from the job.
    """
    refused = []
    in_memory: NodeLocal | None = None
    for candidate in _candidates(environment, type_of):
        folder = candidate.folder
        why = None if folder.is_absolute() and folder.is_dir() else "is not a folder"
        if why is None and not os.access(folder, os.W_OK | os.X_OK):
            why = "cannot be written"
        kind = "" if why else kind_of(folder)
        if not why and (kind in ("local", "unknown") or "BeeOND" in candidate.by):
            return candidate
        if not why and kind == "memory" and in_memory is None:
            in_memory = candidate
        refused.append(f"{candidate.by}: {folder} {why or f'is {kind}'}")
    if in_memory is not None:
        return in_memory
    looked = ", ".join(name for name, _ in VARIABLES)
    found = "; ".join(refused) if refused else f"none of {looked} is set, and no BeeOND is mounted"
    raise CommandError(
        f"--stage-to auto: no local folder of this node found ({found}); name one: --stage-to"
        " /local/scratch"
    )


def _candidates(
    environment: Mapping[str, str], type_of: Callable[[Path], str]
) -> Iterator[NodeLocal]:
    for name, words in VARIABLES:
        if folder := environment.get(name):
            yield NodeLocal(Path(folder), f"{name} ({words})" if words != name else name)
    for place in map(Path, BEEOND):
        if place.is_dir() and type_of(place) == "beegfs":
            yield NodeLocal(place, f"BeeOND at {place}")
