"""What the hooks know of the collectives of a process."""

from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

_NAMES_PER_STEP: Final = 1000


class CollectiveState:
    """Collectives of the current step, and asynchronous ones in progress."""

    def __init__(self) -> None:
        self.in_progress: WeakKeyDictionary[Any, tuple[int, str, int, int]] = WeakKeyDictionary()
        """Work objects of torch's: start, name, step and bytes of each."""
        self.messages: WeakKeyDictionary[Any, Callable[[int], None]] = WeakKeyDictionary()
        """Work objects of messages between two ranks, and what records a wait that began at a
        time."""
        self._step = -1
        self._counts: dict[str, int] = {}

    def unique_name(self, name: str, step: int) -> str:
        """`name`, with a number if there was a collective of that name in this step before."""
        if self._step != step:
            self._step, self._counts = step, {}
        count = self._counts[name] = self._counts.get(name, 0) + 1
        return name if count == 1 or count > _NAMES_PER_STEP else f"{name} {count}"
