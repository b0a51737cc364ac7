"""Observes a library from the moment that the job imports it, and never imports one itself."""

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Watch:
    """A finder in front of all others: it finds what they find, and calls `observe` with a module when it has just been executed.

    The module's loader stays the one that it would have been, of the same type: only its `exec_module` is replaced in the one
    object that loads this module, until it does.
    """

    def __init__(self, is_watched: Callable[[str], bool], observe: Callable[[ModuleType], None]) -> None:
        self._is_watched = is_watched
        self._observe = observe

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """What the other finders find. `importlib` calls this for every import."""
        if not self._is_watched(name):
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                self._follow(spec)
                return spec
        return None

    def invalidate_caches(self) -> None:
        """There are none."""

    def _follow(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        if getattr(loader, "name", None) != spec.name or "exec_module" in getattr(loader, "__dict__", {"exec_module": None}):
            return  # a loader that serves other modules too: this one goes unobserved

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            loader.exec_module(module)
            self._observe(module)

        loader.exec_module = exec_module
