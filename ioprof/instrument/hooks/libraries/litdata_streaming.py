"""Observes LitData: `transform` spans of what makes a sample of the bytes of a chunk, the user's
transform included.

Batches are those of torch's DataLoader, on which LitData's is based. The wait for a chunk that is
still to be downloaded or decompressed by LitData's own thread is no part of a transform: it stays
in `loader`, with the reads of that thread.
"""

from types import ModuleType
from typing import Final

from ioprof.instrument.hooks.library import Library, interrupting, observe_dataset
from ioprof.instrument.hooks.observers import transforming
from ioprof.instrument.hooks.state import HookState

LIBRARY: Final = Library("litdata", "litdata")


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `litdata.streaming.dataset` or `litdata.streaming.item_loader`."""
    if module.__name__ == "litdata.streaming.item_loader":
        LIBRARY.wrap(state, module.BaseItemLoader, "_wait_until_chunk_ready", interrupting)
        return
    dataset = module.StreamingDataset
    LIBRARY.wrap(state, dataset, "_create_cache", interrupting)
    LIBRARY.wrap(
        state, dataset, "__getitem__", lambda original: transforming(original, "StreamingDataset")
    )
    observe_dataset(LIBRARY, dataset, state)
