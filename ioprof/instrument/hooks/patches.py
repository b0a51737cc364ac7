"""Replaces a library's functions by observers, and puts the originals back.

An observer keeps the name, the module, the signature and the attributes of what it observes, and is
found under its name: it pickles by its qualified name, so that a process without ioprof that
unpickles it gets the library's own. The extension's observers do all that by themselves.
"""

import functools
import gc
from collections.abc import Callable
from typing import Any, Final

from ioprof.instrument.hooks import observers

Function = Callable[..., Any]
Observer = Callable[[Function], Function]
"""Takes a library's function and returns one that calls it and records the call."""

_MISSING: Final = object()

_HEAP_TYPE: Final = 1 << 9
"""Py_TPFLAGS_HEAPTYPE, of types that were made at run time."""


class Patches:
    """What was replaced in this process. Replacing what is not there, or is an observer already,
    does nothing.
    """

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._on_undo: list[Callable[[], None]] = []

    def wrap(self, owner: Any, name: str, observer: Observer) -> None:
        """Replace the function `name` that `owner`, a module or a class, holds itself; not one that
        it inherits.
        """
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
            _set_attribute(owner, name, value)
        except (
            AttributeError,
            TypeError,
        ):  # a class that guards its attributes: it is not observed
            return
        self._replaced.append((owner, name, before, value))

    def when_undone(self, function: Callable[[], None]) -> None:
        """Call `function` when all is put back."""
        self._on_undo.append(function)

    def undo(self) -> None:
        """Put back all that nobody has replaced since."""
        while self._on_undo:
            self._on_undo.pop()()
        while self._replaced:
            owner, name, before, value = self._replaced.pop()
            if vars(owner).get(name) is value:
                if before is _MISSING:
                    delattr(owner, name)
                else:
                    _set_attribute(owner, name, before)


def _set_attribute(owner: Any, name: str, value: Any) -> None:
    """Also a method, but no special one, of a static type of an extension module, which refuses it:
    this changes the dictionary of the type and tells the interpreter, as Cython does when it
    prepares a type. Raises AttributeError or TypeError.
    """
    try:
        setattr(owner, name, value)
    except TypeError:
        is_static = (
            isinstance(owner, type)
            and not owner.__flags__ & _HEAP_TYPE
            and owner.__module__ != "builtins"
        )
        if not is_static or name.startswith("__"):
            raise
        observers.type_modified(owner)  # before the change too: without the extension it raises
        [attributes] = gc.get_referents(vars(owner))
        attributes[name] = value
        observers.type_modified(owner)
