"""Observes webdataset: `transform` spans of what its pipelines do to a sample, and `collate` spans
of its own batches.

A pipeline runs within the `fetch` of torch's DataLoader, whose hooks number the batches. The spans
named "tar" are the time in which the next sample was taken out of a shard, one for each sample,
with the shard as their file: reads within them are reads. A sample that passes through a shuffle
buffer is taken out of its shard in an earlier batch than the one that it is part of.
"""

import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks.library import Library
from ioprof.instrument.hooks.observers import transforming
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.span import emit, intern

LIBRARY: Final = Library("webdataset", "webdataset")
_MAPPING: Final = ("_map", "_map_dict", "_map_tuple")
"""Stages of a pipeline that call functions of the user."""


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `webdataset.filters`, `webdataset.tariterators` or `webdataset.autodecode`."""
    if module.__name__ == "webdataset.autodecode":
        LIBRARY.wrap(
            state, module.Decoder, "__call__", lambda original: transforming(original, "Decoder")
        )
    elif module.__name__ == "webdataset.tariterators":
        original = vars(module).get("group_by_keys")
        if LIBRARY.wrap(
            state, module, "group_by_keys", lambda original: _observe_samples(original, state)
        ):
            _replace_in(
                sys.modules.get("webdataset.compat"),
                "group_by_keys",
                original,
                module.group_by_keys,
                state,
            )
    else:
        for name in _MAPPING:
            _observe_stage(module, name, _observe_map, state)
        _observe_stage(module, "_batched", _observe_batched, state)


def _observe_stage(module: ModuleType, name: str, observer: Any, state: HookState) -> None:
    """Replace a generator function, and what the library made of it before: `_map` is found in
    `map.f`, too.
    """
    original = vars(module).get(name)
    if LIBRARY.wrap(state, module, name, lambda original: observer(original, state)):
        _replace_in(
            vars(module).get(name.removeprefix("_")), "f", original, vars(module)[name], state
        )


def _replace_in(owner: Any, name: str, original: Any, observing: Any, state: HookState) -> None:
    if owner is not None and vars(owner).get(name) is original:
        state.patches.put(owner, name, observing)


def _observe_samples(original: Function, state: HookState) -> Function:
    def group_by_keys(*args: Any, **kwargs: Any) -> Iterator[Any]:
        samples = original(*args, **kwargs)
        shards: dict[str, int] = {}
        while True:
            start_ns = monotonic_ns()
            try:
                sample = next(samples)
            except StopIteration:
                return
            if state.is_on:
                LIBRARY.use(state)
                number = _shard(sample, shards)
                emit(
                    "transform",
                    start_ns,
                    monotonic_ns(),
                    "tar",
                    batch=state.per_thread.current.batch,
                    file=number,
                )
            yield sample

    return group_by_keys


def _shard(sample: Any, shards: dict[str, int]) -> int:
    """The number of the file, or URL, that a sample is from."""
    place = sample.get("__local_path__") or sample.get("__url__")
    if not isinstance(place, str):
        return -1
    number = shards.get(place)
    if number is None:
        number = shards[place] = intern(os.path.abspath(place) if os.path.exists(place) else place)
    return number


def _observe_map(original: Function, state: HookState) -> Function:
    """Functions of the user: the span has the name of the function."""

    def observing(function: Any) -> Any:
        name = getattr(function, "__name__", type(function).__name__)
        return (
            transforming(function, name)
            if callable(function) and isinstance(name, str)
            else function
        )

    def stage(data: Any, *args: Any, **kwargs: Any) -> Any:
        if not state.is_on:
            return original(data, *args, **kwargs)
        kept = {
            name: value if name == "handler" else observing(value) for name, value in kwargs.items()
        }
        return original(data, *map(observing, args), **kept)

    return stage


def _observe_batched(original: Function, state: HookState) -> Function:
    """Samples that the pipeline itself puts together; the DataLoader then collates nothing."""

    def batched(data: Any, *args: Any, **kwargs: Any) -> Any:
        collate = kwargs.get(
            "collation_fn",
            args[1] if len(args) > 1 else sys.modules[original.__module__].default_collation_fn,
        )
        if not state.is_on or not callable(collate):
            return original(data, *args, **kwargs)

        def collation_fn(samples: Any) -> Any:
            thread = state.per_thread.current
            start_ns = monotonic_ns()
            batch = collate(samples)
            emit("collate", start_ns, monotonic_ns(), batch=thread.batch)
            if thread.fetching and type(samples) is list:
                thread.num_samples = len(samples)
            return batch

        if len(args) > 1:
            return original(data, args[0], collation_fn, *args[2:], **kwargs)
        return original(data, *args, **{**kwargs, "collation_fn": collation_fn})

    return batched
