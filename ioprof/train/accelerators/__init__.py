"""The devices of the built-in job: `launch` a step on a batch, `synchronize` with it.
`interface.py` has what they share.
"""

from typing import TYPE_CHECKING

from ioprof.errors import CommandError
from ioprof.train.devices import check_device_name, emulated_device

if TYPE_CHECKING:
    from ioprof.train.accelerators.interface import Accelerator
    from ioprof.train.config import JobConfig


def check_device(device: str, ranks: int) -> None:
    """CommandError unless this host has what `--device` names, once for each rank; imports torch
    for `cuda` only.
    """
    check_device_name(device)
    if device != "cuda":
        return
    import torch

    found = torch.cuda.device_count()
    if not found:
        why = "" if torch.version.cuda else f" (torch {torch.__version__} is built without CUDA)"
        raise CommandError(
            f"--device cuda: torch finds no GPU here{why}; choose --device cpu or --device"
            " emulated:a100"
        )
    if ranks > found:
        raise CommandError(
            f"--ranks {ranks}: each rank needs a GPU of its own, and torch finds {found} here; use"
            f" --ranks {found}"
        )


def make_accelerator(
    config: "JobConfig", num_classes: int, rank: int, local_rank: int, clock_offset_ns: int = 0
) -> "Accelerator":
    """The accelerator that `config.device` names, for the rank with that place on its host; needs
    the process group.

    `clock_offset_ns` is what a time of rank 0's clock has more than one of this rank's.
    """
    batch_shape = config.loader_options(0).largest_batch
    device = emulated_device(config.device, config.model_facts)
    if device is not None:
        from ioprof.train.accelerators.emulated import EmulatedAccelerator, latest_over_ranks
        from ioprof.train.accelerators.exchange import Exchange

        return EmulatedAccelerator(
            device,
            Exchange(
                config.exchange, config.ranks, config.ranks_per_node or config.ranks, device.links
            ),
            batch_shape,
            parameters=config.model_facts.parameters,
            copy=config.copy,
            is_constant=config.loader == "null",
            latest=lambda times_ns: latest_over_ranks(times_ns, clock_offset_ns),
        )
    if config.device == "cuda":
        from ioprof.train.accelerators.cuda import CudaAccelerator

        return CudaAccelerator(config, num_classes, rank, local_rank, batch_shape)
    if config.is_pipeline:
        from ioprof.train.accelerators.pipeline import PipelineAccelerator

        return PipelineAccelerator(config, num_classes, rank)
    from ioprof.train.accelerators.cpu import CpuAccelerator

    return CpuAccelerator(config, num_classes, rank)
