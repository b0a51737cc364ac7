"""Observes a library from the moment that the job imports it, and times imports. It never imports a
library itself.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from ioprof.clock import monotonic_ns

try:
    from resource import RUSAGE_SELF, getrusage
except ImportError:  # a frozen program need not have it
    getrusage = None  # type: ignore[assignment]

_SHOWN_NS: Final = 10_000_000
"""Shorter imports are not recorded."""
_BLOCK_BYTES: Final = 512
_IMPORTLIB: Final = "<frozen importlib._bootstrap>"
"""The name under which Python removes frames from the tracebacks of failed imports."""


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.depth = 0
        """Imports in progress that are timed."""


class Watch:
    """A finder in front of all others: it returns what they find.

    It calls `observe` with a watched module right after it was executed, and `imported` with name,
    start and end (CLOCK_MONOTONIC ns) of each outermost import that took 10 ms or more, and the
    bytes that the process fetched from storage meanwhile (-1: not known).

    The module keeps its loader and the loader's type: only `exec_module` of the one object that
    loads this module is replaced, until it has run.
    """

    def __init__(
        self,
        is_watched: Callable[[str], bool],
        observe: Callable[[ModuleType], None],
        imported: Callable[[str, int, int, int], None],
    ) -> None:
        self._is_watched = is_watched
        self._observe = observe
        self._imported = imported
        self._per_thread = _PerThread()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the other finders find. `importlib` calls this for every import."""
        is_watched = self._is_watched(name)
        if not is_watched and self._per_thread.depth:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                self._follow(spec, is_watched)
                return spec
        return None

    def invalidate_caches(self) -> None:
        """It has no caches."""

    def _follow(self, spec: ModuleSpec, is_watched: bool) -> None:
        loader: Any = spec.loader
        if getattr(loader, "name", None) != spec.name or "exec_module" in getattr(
            loader, "__dict__", {"exec_module": None}
        ):
            return  # a loader that serves other modules too: this one is not observed

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            thread = self._per_thread
            before = -1 if thread.depth else _fetched_bytes()
            thread.depth += 1
            start_ns = monotonic_ns()
            try:
                loader.exec_module(module)
            finally:
                thread.depth -= 1
                end_ns = monotonic_ns()
                if (
                    not thread.depth
                    and end_ns - start_ns >= _SHOWN_NS
                    and not module.__name__.startswith("ioprof.")
                ):
                    fetched = _fetched_bytes() - before if before >= 0 else -1
                    self._imported(module.__name__, start_ns, end_ns, fetched)
            if is_watched:
                self._observe(module)

        # A traceback of an error in the module is the same as without this function.
        exec_module.__code__ = exec_module.__code__.replace(co_filename=_IMPORTLIB)
        loader.exec_module = exec_module


def _fetched_bytes() -> int:
    """What this process fetched from block devices until now, readahead included; -1: not known."""
    return -1 if getrusage is None else getrusage(RUSAGE_SELF).ru_inblock * _BLOCK_BYTES
