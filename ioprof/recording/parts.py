"""Runs in parts: a launcher starts `ioprof record` on every host, and each records what runs on its
host.

    srun ioprof record --out RUN -- torchrun ...    makes RUN.parts/0-node1, RUN.parts/1-node2, ...:
                                                    run folders, each of one task
    ioprof gather RUN                               makes RUN of them; the first task does it where
                                                    all have ended in time

Without a launcher that numbers its tasks, give each host its own folder:
`ioprof record --out RUN.parts/NAME -- ...`.
"""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from ioprof.format.run_record import PartNumber
from ioprof.recording.pending_run import is_pending
from ioprof.recording.run_folder import PARTS_SUFFIX

_TASKS: Final = (
    ("WORLD_SIZE", "RANK"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)
"""Variables in which a launcher stores the number of tasks that it started, and the number of this
one. torchrun comes first, and Slurm last, since mpirun may run under it. Of Slurm's variables only
those that srun sets and sbatch does not, because a job's script runs once."""
_JOBS: Final = (
    "SLURM_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "JOB_ID",
    "PMIX_NAMESPACE",
    "PMI_JOBID",
    "TORCHELASTIC_RUN_ID",
)
_NODES: Final = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")
"""Of an allocation: the nodes that srun uses if it is not told."""
_MOST_DIGITS: Final = 7


@dataclass(frozen=True)
class Part:
    """Which part of a run this is."""

    number: int
    of: int
    """How many there will be."""
    job: str | None
    """What distinguishes this start of the command from others; None: nothing does."""

    def record(self) -> PartNumber:
        """Its entry in run.json."""
        return PartNumber(number=self.number, num_parts=self.of, job=self.job)


def own_part(environment: Mapping[str, str]) -> Part | None:
    """The part that a process with this environment records; None if it was started once."""
    for size, rank in _TASKS:
        of, number = _number(environment.get(size)), _number(environment.get(rank))
        if of is not None and number is not None:
            return Part(number, of, _job(environment)) if number < of and of > 1 else None
    return None


def is_launched(environment: Mapping[str, str]) -> bool:
    """Whether a launcher or scheduler started this: no user waits who could type the command
    again.
    """
    names = (*_JOBS, *(size for size, _ in _TASKS))
    return any(environment.get(name) for name in names)


def name_of_job(environment: Mapping[str, str]) -> str | None:
    """Name for the run of several tasks that have no --out: the same for all tasks. None if there
    is one task.
    """
    part = own_part(environment)
    return re.sub(r"[^\w.-]+", "-", part.job, flags=re.ASCII) if part and part.job else None


def part_name(number: int, of: int) -> str:
    """How a part is spoken of, by the number that its folder begins with: `part 0 of parts 0 to
    3`.
    """
    return f"part {number} of parts 0 to {of - 1}"


def part_folder(out: Path, part: Part) -> Path:
    """Where that part of the run `out` goes on this host."""
    host = re.sub(r"[^\w.-]", "_", os.uname().nodename, flags=re.ASCII)
    return parts_folder(out) / f"{part.number}-{host}"


def parts_folder(out: Path) -> Path:
    """The folder of the parts of the run `out`."""
    whole = out.resolve()
    return whole.parent / (whole.name + PARTS_SUFFIX)  # of the root, too


def whole_of(parts: Path) -> Path | None:
    """The run that a folder of parts is of, by its name."""
    name = parts.resolve().name
    return (
        parts.resolve().with_name(name.removesuffix(PARTS_SUFFIX))
        if name.endswith(PARTS_SUFFIX) and name != PARTS_SUFFIX
        else None
    )


def unrecorded_nodes(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """On how many nodes an `srun` that is recorded starts tasks, as far as is known, if that is
    more than one: only what runs on this one is recorded. 0: none besides this.
    """
    if not command or Path(command[0]).name != "srun":
        return 0
    nodes = next((environment[name] for name in _NODES if environment.get(name)), "")
    for word, after in pairwise([*command[1:], ""]):
        if shutil.which(word, path=environment.get("PATH")):
            break  # the command that srun starts
        if found := re.fullmatch(r"(?:-N|--nodes)=?(\d*)(?:-\d+)?", word):
            nodes = found[1] or after
    number = _number(nodes.partition("-")[0]) or 0
    return number if number > 1 else 0


def parts_in(folder: Path) -> list[Path]:
    """The run folders in a folder, complete or pending, in the order of their names."""
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path for path in inside if (path / "run.json").is_file() or is_pending(path)]


def _job(environment: Mapping[str, str]) -> str | None:
    # torchrun's number without --rdzv-id
    named = (name for name in _JOBS if environment.get(name, "none") != "none")
    job = next((f"{name}={environment[name]}" for name in named if environment[name]), None)
    step = environment.get("SLURM_STEP_ID")
    return f"{job} step {step}" if job and step else job


def _number(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None
