"""Double-buffered host memory that copies to a device start from."""

from collections.abc import Callable

import torch


class StagingBuffers:
    """Two host buffers used in turn, page-locked where there is a device to copy to.

    With two, a batch is copied to the device while the next is put into the other; with one, the loader would wait for the copy.
    """

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned
        self._buffers: list[torch.Tensor | None] = [None, None]

    def stage(self, images: torch.Tensor, step: int, wait_until_free: Callable[[int], None]) -> torch.Tensor:
        """A copy of `images` in the buffer of `step`, after `wait_until_free(step - 2)` says that its last copy has left."""
        slot = step % 2
        if step >= 2:
            wait_until_free(step - 2)
        buffer = self._buffers[slot]
        if buffer is None or len(buffer) < len(images):
            buffer = self._buffers[slot] = torch.empty(images.shape, dtype=images.dtype, pin_memory=self._pinned)
        staged = buffer[: len(images)]
        staged.copy_(images)
        return staged
