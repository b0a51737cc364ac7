"""What the job trains on. All have one interface: `copy` a batch, launch a `train_step`, `synchronize` with it."""

from typing import Protocol

from ioprof.errors import CommandError
from ioprof.loaders.base import Batch
from ioprof.train.config import JobConfig, emulated_device

COMPUTE_STREAM = 0
COPY_STREAM = 1
COMM_STREAM = 2


class Accelerator(Protocol):
    """One rank's device. Work is launched and goes on by itself; spans of it are recorded as it ends."""

    def launch(self, batch: Batch, step: int) -> None:
        """Start the copy of `batch` and the training step on it; returns once `batch` may be overwritten."""

    def synchronize(self, step: int) -> None:
        """Wait until `step` has been computed and its gradients exchanged; raises what went wrong on the device."""

    def close(self) -> None:
        """Stop the device's threads; what is still under way is dropped."""


def check_device(device: str, ranks: int) -> None:
    """CommandError unless this host has what `--device` names, once for each rank; imports torch for `cuda` only."""
    if emulated_device(device) is not None or device != "cuda":
        return
    import torch

    found = torch.cuda.device_count()
    if not found:
        why = "" if torch.version.cuda else f" (torch {torch.__version__} is built without CUDA)"
        raise CommandError(f"--device cuda: torch finds no GPU here{why}; choose --device cpu or --device emulated:a100")
    if ranks > found:
        raise CommandError(f"--ranks {ranks}: each rank needs a GPU of its own, and torch finds {found} here; use --ranks {found}")


def make_accelerator(config: JobConfig, num_classes: int, local_rank: int) -> Accelerator:
    """The accelerator that `config.device` names, for the rank with that place on its host; needs the process group."""
    batch_shape = config.loader_options(0).largest_batch
    device = emulated_device(config.device)
    if device is not None:
        from ioprof.train.accelerators.emulated import EmulatedAccelerator

        return EmulatedAccelerator(device, config.ranks, batch_shape)
    if config.device == "cuda":
        from ioprof.train.accelerators.cuda import CudaAccelerator

        return CudaAccelerator(num_classes, config.ranks, local_rank, batch_shape)
    from ioprof.train.accelerators.cpu import CpuAccelerator

    return CpuAccelerator(num_classes, config.ranks)
