"""Observes MosaicML streaming: `transform` spans of what makes a sample of the bytes of a shard,
and of the user's `__getitem__`.

Batches are those of torch's DataLoader. The wait for a shard that is still to be downloaded or
decompressed is no part of a transform.
"""

from types import ModuleType
from typing import Final

from ioprof.instrument.hooks.library import Library, interrupting, observe_dataset
from ioprof.instrument.hooks.observers import transforming
from ioprof.instrument.hooks.state import HookState

LIBRARY: Final = Library("streaming", "streaming")


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `streaming.base.dataset` or `streaming.base.format.mds.reader`."""
    if module.__name__ == "streaming.base.format.mds.reader":
        LIBRARY.wrap(
            state,
            module.MDSReader,
            "decode_sample",
            lambda original: transforming(original, "MDSReader"),
        )
        return
    dataset = module.StreamingDataset
    LIBRARY.wrap(state, dataset, "prepare_shard", interrupting)
    observe_dataset(LIBRARY, dataset, state)
