"""One rank of the built-in job: `python -m ioprof.train.job CONFIG PID`, started by ioprof, whose
process id is PID.
"""

import os
import signal
import sys
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Final

import torch
import torch.distributed as dist

from ioprof.errors import IoprofError, LoaderError
from ioprof.format.dataset import Dataset, write_json_atomically
from ioprof.instrument import manual
from ioprof.loaders import make_loader
from ioprof.loaders.base import Loader, LoadingFacts
from ioprof.process import die_with_parent
from ioprof.train.accelerators import make_accelerator
from ioprof.train.config import JobConfig, loading_path, network_path
from ioprof.train.loop import Loop
from ioprof.train.network import SIZES, measure_network
from ioprof.train.rendezvous import clock_offset_ns, join

MOST_LEFT_OUT: Final = 1000
"""Images of each rank that run.json names; further ones are counted."""


class Stopped(BaseException):
    """ioprof stopped this rank by a signal, because of Ctrl-C or because another rank failed."""


def main() -> int:
    """Run the rank that the environment names; 0 when all steps are done."""
    config = JobConfig.load(Path(sys.argv[1]))
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    die_with_parent(parent=int(sys.argv[2]))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    manual.start_rank(gpu_window="off")  # the accelerator times what the device does, in every step
    try:
        train(config, rank, local_rank)
        outcome = "done"
    except Stopped:
        outcome = "stopped"
    except IoprofError as error:
        outcome = str(error)
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    _disarm()
    manual.stop()
    with suppress(OSError):  # on a full disk there is only the exit status
        write_json_atomically(status_path(config.spool, rank), {"rank": rank, "outcome": outcome})
    # Other ranks may be gone or hang, and to destroy the process group could wait for them without
    # end.
    sys.stdout.flush()
    os._exit(0 if outcome == "done" else 1)


def status_path(spool: Path, rank: int) -> Path:
    """Where a rank leaves how it ended: `{"rank", "outcome"}`, outcome `done`, `stopped` or what
    went wrong.
    """
    return spool / f"rank-{rank}.json"


def progress_path(spool: Path) -> Path:
    """A file that the first rank of this ioprof makes one byte longer with each step, see
    `Loop.progress`.
    """
    return spool / "progress"


def train(config: JobConfig, rank: int, local_rank: int) -> None:
    """All steps of one rank."""
    torch.set_num_threads(config.threads or max(1, (os.cpu_count() or 1) // _ranks_here(config)))
    dataset = config.open_dataset()
    # a loader may decode on the rank's own GPU
    device_id = local_rank if config.device == "cuda" else None
    loader = _loader(config, dataset, rank, device_id)
    batches = iter(loader)
    if config.ranks > 1:
        join(config, rank, os.environ)
    num_classes = len(dataset.classes) if dataset else 1000
    is_apart = config.is_task and config.ranks > 1 and config.device.startswith("emulated:")
    offset_ns = clock_offset_ns(rank, config.ranks) if is_apart else 0
    accelerator = make_accelerator(config, num_classes, rank, local_rank, offset_ns)
    with (
        open(progress_path(config.spool), "ab")
        if rank == config.first_rank
        else nullcontext() as progress
    ):
        if config.probe_network and config.ranks > 1:
            found = measure_network(config, rank, local_rank, _sizes(config))
            if rank == config.first_rank:
                write_json_atomically(network_path(config.spool), found)
        loop = Loop(config, rank, accelerator, progress)
        loop.restore()
        if config.ranks > 1:
            dist.barrier()
        try:
            loop.train(batches)
        except (
            RuntimeError,
            OSError,
            EOFError,
        ):  # what is raised, and where, depends on what a lost worker was doing
            if lost := loader.lost_worker():
                raise LoaderError(lost) from None
            raise
        finally:
            with suppress(OSError):  # a full disk loses this, not the job
                _save_facts(config.spool, rank, loader.facts(), tuple(loop.left_out))
    accelerator.close()
    if config.ranks > 1:
        dist.barrier()


def _loader(config: JobConfig, dataset: Dataset | None, rank: int, device_id: int | None) -> Loader:
    if config.reads(rank):
        return make_loader(
            config.loader, dataset, replace(config.loader_options(rank), device_id=device_id)
        )
    # jobs with stages load torch's pipelining
    from ioprof.train.accelerators.pipeline import (
        NoBatches,
    )

    return NoBatches(config.first_step, config.steps)


def _save_facts(spool: Path, rank: int, facts: LoadingFacts, left_out: tuple[str, ...]) -> None:
    found = {**asdict(facts), "num_left_out": len(left_out), "left_out": left_out[:MOST_LEFT_OUT]}
    write_json_atomically(loading_path(spool, rank), found)


def _sizes(config: JobConfig) -> tuple[int, ...]:
    """A small one, and that of the gradients."""
    return (SIZES[0], config.model_facts.gradient_bytes)


def _ranks_here(config: JobConfig) -> int:
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(local) if config.is_task and local.isdigit() and int(local) else config.ranks


def _stop(_number: int, _frame: FrameType | None) -> None:
    _disarm()
    raise Stopped


def _disarm() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    # torch's handler would raise because the loader's workers stop too
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


if __name__ == "__main__":
    raise SystemExit(main())
