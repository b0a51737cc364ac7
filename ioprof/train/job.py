"""One rank of the built-in job: `python -m ioprof.train.job CONFIG PID`, started by torch's elastic launcher, whose number is PID.

The loop is the usual one with copies ahead: wait for batch i, start its copy and its step, then wait for the device to finish step
i - 1. So the device always has the next step queued, and the loader's wait runs under the step before.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import IO

import torch
import torch.distributed as dist

from ioprof.clock import monotonic_ns
from ioprof.dataset import write_json_atomically
from ioprof.errors import IoprofError, LoaderError
from ioprof.loaders import make_loader
from ioprof.loaders.base import Batch
from ioprof.process import die_with_parent
from ioprof.record import recorder
from ioprof.record.span import emit
from ioprof.train.accelerators import Accelerator, make_accelerator
from ioprof.train.config import JobConfig


class Stopped(BaseException):
    """The launcher told this rank to stop, because of Ctrl-C or because another rank failed."""


def main() -> int:
    """Run the rank that the launcher's environment names; 0 when all steps are done."""
    config = JobConfig.load(Path(sys.argv[1]))
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    die_with_parent(parent=int(sys.argv[2]))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    recorder.start(config.spool, rank=rank, role="rank")
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
    recorder.stop()
    with suppress(OSError):  # on a full disk the exit status alone says how the rank ended
        write_json_atomically(status_path(config.spool, rank), {"rank": rank, "outcome": outcome})
    # The peers may be gone or hang: leave without the process group's orderly farewell, which could wait for them for ever.
    sys.stdout.flush()
    os._exit(0 if outcome == "done" else 1)


def status_path(spool: Path, rank: int) -> Path:
    """Where a rank leaves how it ended: `{"rank", "outcome"}`, outcome `done`, `stopped` or what went wrong."""
    return spool / f"rank-{rank}.json"


def progress_path(spool: Path) -> Path:
    """A file that rank 0 makes one byte longer with each step."""
    return spool / "progress"


def train(config: JobConfig, rank: int, local_rank: int) -> None:
    """All steps of one rank."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // config.ranks))
    dataset = config.open_dataset()
    device_id = local_rank if config.device == "cuda" else None  # a loader may decode on the rank's own GPU
    loader = make_loader(config.loader, dataset, replace(config.loader_options(rank), device_id=device_id))
    batches = iter(loader)
    if config.ranks > 1:
        dist.init_process_group("nccl" if config.device == "cuda" else "gloo")
    accelerator = make_accelerator(config, len(dataset.classes) if dataset else 1000, local_rank)
    if config.ranks > 1:
        dist.barrier()
    with open(progress_path(config.spool), "ab") if rank == 0 else nullcontext() as progress:
        try:
            _train_steps(batches, accelerator, config.steps, progress)
        except (RuntimeError, OSError, EOFError):  # what is raised, and where, depends on what a lost worker was doing
            if lost := loader.lost_worker():
                raise LoaderError(lost) from None
            raise
    accelerator.close()
    if config.ranks > 1:
        dist.barrier()


def _train_steps(batches: Iterator[Batch], accelerator: Accelerator, steps: int, progress: IO[bytes] | None) -> None:
    begin_ns = monotonic_ns()
    for step in range(steps):
        batch = next(batches)
        accelerator.launch(batch, step)
        if step > 0:
            accelerator.synchronize(step - 1)
        if step == steps - 1:
            accelerator.synchronize(step)
        end_ns = monotonic_ns()
        emit("step", begin_ns, end_ns, step=step, batch=batch.number)
        begin_ns = end_ns
        if progress:
            with suppress(OSError):  # a full disk stops the progress that is shown, not the job
                os.write(progress.fileno(), b".")


def _stop(_number: int, _frame: FrameType | None) -> None:
    _disarm()
    raise Stopped


def _disarm() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would raise because the loader's workers stop too


if __name__ == "__main__":
    raise SystemExit(main())
