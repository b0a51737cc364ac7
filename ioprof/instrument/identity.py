"""Which rank of the job a process is: by its launcher's environment variables, or by what it does
later.

A process without a rank has rank -1 until it trains: then it takes the next free number of its job,
so that a script that was not launched as a rank is rank 0, and a second one of the same job rank 1.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ioprof.instrument import recorder

RANK_VARIABLES: Final = {
    "torch": ("RANK",),
    "mpi": ("OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK"),
    "pmi": ("PMIX_RANK", "PMI_RANK"),
    "scheduler": ("SLURM_PROCID",),
}
"""Variables that hold a process's rank, by `schema.RANK_SOURCES`, best first."""

SIZE_VARIABLES: Final = {
    "torch": ("WORLD_SIZE",),
    "mpi": ("OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"),
    "pmi": ("PMI_SIZE",),
    "scheduler": ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
}
"""Variables that hold the number of ranks, by the source of the rank."""
RESTARTS_VARIABLE: Final = "TORCHELASTIC_RESTART_COUNT"
"""How often torchrun has started its workers again."""

_RANKS: Final = 1 << 20
_FREE_NUMBERS: Final = 4096


class Identity:
    """What this process is to the job; `publish` writes it to the capture file."""

    def __init__(self, rank: int = -1, source: str | None = None) -> None:
        self.rank = rank
        self.source = source
        """Where the rank comes from, one of `schema.RANK_SOURCES`; None: from no launcher, see
        `become_rank`."""
        self.role = "other"
        self.worker = -1

    def publish(self) -> None:
        """Write it to the capture file of this process, if there is one."""
        recorder.identify(self.rank, self.role, self.worker, self.source)

    def become_rank(self, spool: Path) -> None:
        """It trains, or consumes batches: it is a rank, if it has no number the next free one."""
        if self.role != "other":
            return
        self.role = "rank"
        if self.rank < 0:
            self.rank = _take_number(spool)
        self.publish()

    def join_group(self, rank: int) -> None:
        """It joined a process group of torch's as `rank`, which takes precedence over all variables
        but torch's own.
        """
        if self.role != "worker" and self.source != "torch" and 0 <= rank < _RANKS:
            self.rank, self.source = rank, "torch"
            self.publish()

    def become_worker(self, rank: int, worker: int) -> None:
        """It is a worker of the loader of `rank`; -1: not known."""
        self.role, self.worker = "worker", worker
        if rank >= 0:
            self.rank = rank
        self.publish()


def rank_of(environment: Mapping[str, str]) -> tuple[int, str | None]:
    """The rank that an environment gives, and its source; (-1, None) where it gives none."""
    for source, names in RANK_VARIABLES.items():
        for name in names:
            rank = _number(environment.get(name, ""))
            if rank is not None and (
                source != "scheduler" or (_number(environment.get("SLURM_NTASKS", "")) or 0) > 1
            ):
                return rank, source
    return -1, None


def launch_facts(environment: Mapping[str, str], source: str | None) -> dict[str, int]:
    """What the launcher that gave a rank says of the job, where it says it: `ranks`, how many it
    started, and `restarts`, how often it had started them again before.
    """
    sizes = (environment.get(name, "") for name in SIZE_VARIABLES.get(source or "", ()))
    ranks = next((size for size in map(_number, sizes) if size), 0)
    restarts = _number(environment.get(RESTARTS_VARIABLE, "")) or 0
    found = {"ranks": ranks if ranks > 1 else 0, "restarts": restarts}
    return {name: number for name, number in found.items() if number}


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and int(text) < _RANKS else None


def _take_number(spool: Path) -> int:
    """The first number that no process of this spool has taken: each is a file that can be created
    once.
    """
    for number in range(_FREE_NUMBERS):
        try:
            os.close(
                os.open(
                    spool / f"rank-taken-{number}",
                    os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC,
                    0o600,
                )
            )
        except FileExistsError:
            continue
        except OSError:  # a spool that is full or gone: the capture file will not say more either
            return -1
        return number
    return -1
