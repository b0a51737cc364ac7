"""Observes Hugging Face datasets: `transform` spans of what makes examples of Arrow data, named for
the formatter or the function.

Images are decoded within that by Pillow, which has a hook of its own. What a formatter takes beyond
that is time of conversions: it grows with columns that the training does not need, and with nested
lists.
"""

import copy
import inspect
import sys
from functools import partial
from types import ModuleType
from typing import Any, Final

from ioprof.instrument.hooks.library import Library
from ioprof.instrument.hooks.observers import transforming
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState

LIBRARY: Final = Library("datasets", "datasets")
_METHODS: Final = ("format_row", "format_column", "format_batch", "recursive_tensorize")
"""Of a formatter: by these all ways to access a dataset make examples."""


def observe(module: ModuleType, state: HookState) -> None:
    """Observe a module with formatters, or `datasets.iterable_dataset`."""
    if module.__name__ == "datasets.iterable_dataset":
        LIBRARY.wrap(
            state,
            module.MappedExamplesIterable,
            "__iter__",
            lambda original: _observe_mapped(original, state),
        )
        LIBRARY.wrap(
            state,
            module,
            "_apply_feature_types_on_example",
            lambda original: transforming(original, "Features"),
        )
        return
    if module.__name__ == "datasets.formatting.formatting":
        LIBRARY.wrap(
            state, module.Formatter, "__init__", lambda original: _observe_init(original, state)
        )
        LIBRARY.wrap(
            state, module.PythonFormatter, "format_row", partial(_observe_method, "PythonFormatter")
        )
        _observe_query(module, state)
    for value in list(vars(module).values()):
        if (
            isinstance(value, type)
            and value.__module__ == module.__name__
            and value.__name__.endswith("Formatter")
        ):
            for name in _METHODS:
                state.patches.wrap(value, name, partial(_observe_method, value.__name__))


def _observe_method(name: str, original: Function) -> Function:
    return transforming(original, name)


def _observe_query(module: ModuleType, state: HookState) -> None:
    """The access to the rows of a table, which other modules have imported by its name."""
    original = vars(module).get("query_table")
    if LIBRARY.wrap(
        state, module, "query_table", lambda original: transforming(original, "query_table")
    ):
        for name in ("datasets.formatting", "datasets.arrow_dataset"):
            other = sys.modules.get(name)
            if other is not None and vars(other).get("query_table") is original:
                state.patches.put(other, "query_table", module.query_table)


def _observe_init(original: Function, state: HookState) -> Function:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if state.is_on:
            LIBRARY.use(state)

    return init


def _observe_mapped(original: Function, state: HookState) -> Function:
    """`map` of a streamed dataset calls the user's function while it is iterated. The iterable
    itself stays as it is: a copy, which shares the state of the iteration with it, calls the
    function by an observer.
    """

    def iterate(self: Any) -> Any:
        function = self.function
        name = getattr(function, "__name__", type(function).__name__)
        if (
            not state.is_on
            or not callable(function)
            or not isinstance(name, str)
            or inspect.iscoroutinefunction(function)
        ):
            return original(self)
        LIBRARY.use(state)
        twin = copy.copy(self)
        twin.function = transforming(function, name)
        return original(twin)

    return iterate
