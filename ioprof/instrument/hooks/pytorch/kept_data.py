"""What a dataset keeps in the process of a worker, such as decoded samples in a dict: it is lost
when the worker ends.

Looked at after the worker's first batch and when it ends: dicts, filled places of lists, and
functions' caches that are attributes of the dataset, of what it holds, of their classes or modules.
No code of the job is called. Of each batch between it is noted whether it added anything: what
batches that do take longer is what the cache saves.
"""

import functools
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks.loader_numbers import is_of_job
from ioprof.instrument.host import host

if TYPE_CHECKING:
    from ioprof.instrument.hooks.state import HookState

_KEPT_DATA: Final = "kept_data"
"""Key of the facts that are recorded, see `ProcessRecord.kept_data`."""
_MOST_OBJECTS: Final = 1_000
"""That are looked at, while the worker makes no batch."""
_MOST_INNER: Final = 32
"""Of a container, up to which its elements are looked into: parts of a dataset, and no samples."""
_MOST_PLACES: Final = 100_000
"""Of a list whose filled places are counted: each of them is compared with None."""
_MOST_WATCHED: Final = 64
"""Attributes that are looked at after each batch."""
_CACHE: Final = type(functools.lru_cache(abs))
_NO_DATA: Final = (bool, int, float, complex, type(None))
"""Types of values that are counts or settings."""
_OPAQUE: Final = (ModuleType, FunctionType, MethodType, str, bytes, bytearray, int, float)


class _Attribute:
    """An attribute that may be a cache, without a reference to it: the job may replace it."""

    def __init__(self, owner: Any, key: str, name: str) -> None:
        self._owner, self._key, self.name = ref(owner), key, name
        self.is_list = type(self.value) is list
        self.first = self.last = 0 if self.value is None else _size(self.value)

    @property
    def value(self) -> Any:
        """None: it is no container any more."""
        owner = self._owner()
        value = None if owner is None else vars(owner).get(self._key)
        value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        return value if _is_container(value) else None

    def grows(self) -> bool:
        """Whether it has more entries than when this was asked last."""
        value, before = self.value, self.last
        self.last = 0 if value is None else _size(value)
        return self.last > before


class KeptData:
    """What the dataset of one worker keeps."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._attributes: list[_Attribute] = []
        self._begun_ns = self._num_tasks = self._samples = 0
        self._batches = {"repeated": 0, "repeated_ns": 0, "new": 0, "new_ns": 0}
        """Batches that added nothing, and those that did."""

    def begin_batch(self, index: Any) -> None:
        """The worker is to make a batch of these samples."""
        self._num_tasks += 1
        if self._num_tasks > 1:
            self._samples += len(index) if isinstance(index, list | tuple) else 1
        self._begun_ns = monotonic_ns()

    def end_batch(self) -> None:
        """It has made that batch."""
        if not self._begun_ns:
            return
        took_ns, self._begun_ns = monotonic_ns() - self._begun_ns, 0
        with suppress(Exception):  # an object of the job that is unlike others
            if self._num_tasks == 1:
                self._attributes = list(_attributes(self._dataset))
            elif self._attributes:
                grown = [each.grows() for each in self._attributes if not each.is_list]
                which = "new" if any(grown) else "repeated"
                self._batches[which] += 1
                self._batches[f"{which}_ns"] += took_ns

    def record(self, state: "HookState") -> None:
        """Write what was added since the first batch, if anything was, as a fact of the process."""
        with suppress(Exception):
            for each in self._attributes:
                each.grows()
            grown = [each for each in self._attributes if _holds_data(each.value)]
            most = max(grown, key=lambda each: each.last - each.first, default=None)
            if most is None or most.last <= most.first or not self._samples:
                return
            facts = {
                "name": most.name,
                "entries": most.last - most.first,
                "samples": self._samples,
                "is_full": type(most.value) is _CACHE and most.last == most.value.cache_info()[2],
                **({} if most.is_list else self._batches),
            }
            state.record_fact(**{_KEPT_DATA: facts}, host=host(), pid=os.getpid())


def _is_container(value: Any) -> bool:
    return isinstance(value, dict) or type(value) in (list, _CACHE)


def _size(container: Any) -> int:
    """Its entries, without its own `__len__`; of a list those that are not None."""
    if type(container) is _CACHE:
        return int(container.cache_info()[3])
    if isinstance(container, dict):
        return dict.__len__(container)
    if len(container) > _MOST_PLACES:
        return 0
    return len(container) - list(map(id, container)).count(id(None))


def _holds_data(container: Any) -> bool:
    """Whether its values are no counts or settings."""
    if not isinstance(container, dict):
        return container is not None
    return type(next(iter(dict.values(container)), None)) not in _NO_DATA


def _attributes(dataset: Any) -> Iterator[_Attribute]:
    seen, ahead, number = set[int](), [dataset], 0
    for _ in range(_MOST_OBJECTS):
        if not ahead:
            return
        found = ahead.pop()
        if id(found) in seen or isinstance(found, _OPAQUE):
            continue
        seen.add(id(found))
        if isinstance(found, dict | list | tuple):
            values = list(dict.values(found)) if isinstance(found, dict) else found
            ahead += values if len(values) <= _MOST_INNER else ()
            continue
        for owner in _owners(found):
            for key, value in list(vars(owner).items()):
                value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
                if not key.startswith("__") and _is_container(value) and number < _MOST_WATCHED:
                    number += 1
                    kind = type(found) if owner is found else owner
                    yield _Attribute(owner, key, f"{kind.__name__}.{key}")
                if owner is found:
                    ahead.append(value)


def _owners(found: Any) -> Iterator[Any]:
    """An object, its classes that are no library's, and their modules, which have attributes."""
    if not isinstance(found, type) and hasattr(found, "__dict__") and type(found).__weakrefoffset__:
        yield found
    for kind in type(found).__mro__:
        module = sys.modules.get(kind.__module__)
        file = getattr(module, "__file__", None)
        if file and is_of_job(file):
            yield kind
            yield module
