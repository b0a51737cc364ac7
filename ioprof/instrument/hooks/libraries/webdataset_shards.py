"""Observes how webdataset divides shards: how many a rank has for its loader's workers, each of
which goes to one of them.

A pipeline begins with the list of shards, and its stages `split_by_node` and `split_by_worker` each
take a part of what comes before them. All are called one after the other, in the thread that takes
the samples, before the first shard is opened. Of a list that is sampled with repetition, or divided
by functions of the user, nothing is recorded.
"""

import threading
from math import ceil
from types import ModuleType
from typing import Any

from ioprof.instrument.hooks.libraries.webdataset_pipelines import LIBRARY
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState


class _Shards(threading.local):
    number = 0
    """Of the list that the thread reads from now, those of this rank; 0: not known."""


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `webdataset.shardlists`."""
    shards = _Shards()

    def observe_list(original: Function) -> Function:
        def iterate(self: Any) -> Any:
            urls = getattr(self, "urls", None)
            shards.number = len(urls) if isinstance(urls, list) else 0
            return original(self)

        return iterate

    def observe_nodes(original: Function) -> Function:
        def split(source: Any, *args: Any, **kwargs: Any) -> Any:
            ranks = module.utils.pytorch_worker_info(*args, **kwargs)[1] if state.is_on else 1
            shards.number = ceil(shards.number / max(ranks, 1))
            return original(source, *args, **kwargs)

        return split

    def observe_workers(original: Function) -> Function:
        def split(*args: Any, **kwargs: Any) -> Any:
            if state.is_on and shards.number:
                state.record_fact(shards=shards.number)
            shards.number = 0
            return original(*args, **kwargs)

        return split

    LIBRARY.wrap(state, module.SimpleShardList, "__iter__", observe_list)
    LIBRARY.wrap(state, module, "split_by_node", observe_nodes)
    LIBRARY.wrap(state, module, "split_by_worker", observe_workers)
