"""Puts observing functions in the place of a library's own, and takes them away again.

An observer keeps the name, the module, the signature and the attributes of what it observes, and is found where that was: it
pickles by its qualified name, so that a process without ioprof that unpickles it gets the library's own. The extension's observers
do all that by themselves.
"""

import functools
from collections.abc import Callable
from typing import Any, Final

Function = Callable[..., Any]
Observer = Callable[[Function], Function]
"""Takes a library's function and returns one that calls it and looks on."""

_MISSING: Final = object()


class Patches:
    """What was replaced in this process. Replacing what is not there, or was replaced before, does nothing."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, str, Any, Any]] = []
        self._undone: list[Callable[[], None]] = []

    def wrap(self, owner: Any, name: str, observer: Observer) -> None:
        """Replace the function `name` that `owner`, a module or a class, holds itself; not one that it inherits."""
        original = vars(owner).get(name)
        if not callable(original) or hasattr(original, "_ioprof_observes"):
            return
        observing = observer(original)
        if getattr(observing, "_ioprof_observes", None) is not original:
            functools.update_wrapper(observing, original)
            observing._ioprof_observes = original  # type: ignore[attr-defined]  # noqa: SLF001
        self.put(owner, name, observing)

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute."""
        before = vars(owner).get(name, _MISSING)
        try:
            setattr(owner, name, value)
        except (AttributeError, TypeError):  # a class of C, or one that guards its attributes: it goes unobserved
            return
        self._made.append((owner, name, before, value))

    def when_undone(self, function: Callable[[], None]) -> None:
        """Call `function` when all is put back."""
        self._undone.append(function)

    def undo(self) -> None:
        """Put back all that nobody has replaced since."""
        while self._undone:
            self._undone.pop()()
        while self._made:
            owner, name, before, value = self._made.pop()
            if vars(owner).get(name) is value:
                if before is _MISSING:
                    delattr(owner, name)
                else:
                    setattr(owner, name, before)


patches = Patches()
