"""Observes the package tfrecord: `transform` spans of what makes arrays of a tf.train.Example, and
of the user's transform.

Batches are those of torch's DataLoader.
"""

import copy
from types import ModuleType
from typing import Any, Final

from ioprof.instrument.hooks.library import Library
from ioprof.instrument.hooks.observers import transforming
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState

LIBRARY: Final = Library("tfrecord", "tfrecord")


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `tfrecord.reader` or `tfrecord.torch.dataset`."""
    if module.__name__ == "tfrecord.reader":
        LIBRARY.wrap(
            state,
            module,
            "extract_feature_dict",
            lambda original: transforming(original, "extract_feature_dict"),
        )
        return
    for dataset in (module.TFRecordDataset, module.MultiTFRecordDataset):
        LIBRARY.wrap(state, dataset, "__iter__", lambda original: _observe_iter(original, state))


def _observe_iter(original: Function, state: HookState) -> Function:
    """The dataset stays as it is: a copy calls the user's transform by an observer."""

    def iterate(self: Any) -> Any:
        if not state.is_on:
            return original(self)
        LIBRARY.use(state)
        function = self.transform
        # the default does nothing
        if not callable(function) or getattr(function, "__module__", None) == original.__module__:
            return original(self)
        twin = copy.copy(self)
        twin.transform = transforming(
            function, str(getattr(function, "__name__", type(function).__name__))
        )
        return original(twin)

    return iterate
