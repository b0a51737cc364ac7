"""What the hooks of data libraries share: the name of the library in reports, and what of its
version could not be observed.
"""

import functools
import sys
from dataclasses import dataclass
from typing import Any

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks.observers import interrupted, transforming
from ioprof.instrument.hooks.patches import Function, Observer
from ioprof.instrument.hooks.state import HookState


@dataclass(frozen=True)
class Library:
    """A library, and the package that knows its version."""

    name: str
    package: str

    @property
    def version(self) -> str:
        """As the package states it; "of unknown version" where it does not."""
        return str(getattr(sys.modules.get(self.package), "__version__", "of unknown version"))

    def use(self, state: HookState) -> None:
        """The job uses the library: reports name it. Called for every sample or batch, and does
        nothing after the first call.
        """
        if self.name not in state.used_libraries:
            state.used_libraries.add(self.name)
            state.record_fact(library=f"{self.name} {self.version}")

    def wrap(self, state: HookState, owner: Any, name: str, observer: Observer) -> bool:
        """Replace the function `name` that `owner`, a module or a class, holds itself. Where there
        is none, this version of the library is not one that ioprof knows: it is left alone, and
        reports say so.
        """
        if not callable(vars(owner).get(name)):
            place = (
                owner.__name__
                if isinstance(owner, type(sys))
                else f"{owner.__module__}.{owner.__qualname__}"
            )
            state.record_fact(
                unobserved=f"{self.name} {self.version}: {place}.{name}",
                why="this version has no such function",
            )
            return False
        state.patches.wrap(owner, name, observer)
        return True


def observe_items(dataset: Any, base: type, state: HookState) -> None:
    """Observe the `__getitem__` of the user's subclass of a library's dataset: what it does to a
    sample is a transform.
    """
    for cls in type(dataset).__mro__:
        if cls is base:
            return
        if "__getitem__" in vars(cls):
            state.patches.wrap(
                cls,
                "__getitem__",
                lambda original: transforming(original, cls.__name__),  # noqa: B023
            )
            return


def observe_dataset(library: Library, base: type, state: HookState) -> None:
    """Observe the `__iter__` of a library's dataset class: the job uses the library, and the user's
    subclass is observed.
    """

    def observer(original: Function) -> Function:
        def iterate(self: Any) -> Any:
            if state.is_on:
                library.use(state)
                observe_items(self, base, state)
            return original(self)

        return iterate

    library.wrap(state, base, "__iter__", observer)


def interrupting(original: Function) -> Function:
    """An observer of a function in which a thread waits for others: that is no part of a
    transform.
    """

    @functools.wraps(original)
    def wait(*args: Any, **kwargs: Any) -> Any:
        start_ns = monotonic_ns()
        try:
            return original(*args, **kwargs)
        finally:
            interrupted(start_ns, monotonic_ns())

    return wait
