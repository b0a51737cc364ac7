"""Observes where a job makes DataLoaders and what for, by which its next run tells them apart;
changes one for `ioprof prove`.

Hooks observe and change nothing, with this one exception: in a job that has the variable
`CHANGE_VARIABLE`, which `ioprof prove` alone sets, the constructors of the loaders that it names
get other arguments.
"""

import sys
from typing import Any, Final

from ioprof.instrument.hooks.loader_numbers import MADE
from ioprof.instrument.hooks.loader_use import REPLACED
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.loader_change import change_call, change_own_call

_OBSERVED_ITSELF: Final = "torchdata.stateful_dataloader.stateful_dataloader"


def observe_init(original: Function, state: HookState) -> Function:
    """An observer of the constructor of a class of loaders that sets all of their attributes."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        change = None
        if state.is_on and state.identity.role != "worker":
            known = state.loader_numbers.identify(self, sys._getframe(1))  # noqa: SLF001
            change = state.loader_change
        if change is None or not change.is_of(known.path, known.number):
            original(self, *args, **kwargs)
            return
        taken: dict[str, Any] = vars(self).get(REPLACED, {})
        call = change_own_call(original, (self, *args), kwargs, change.arguments, taken)
        vars(self)[REPLACED] = {**call.replaced, **taken}
        original(*call.args, **call.kwargs)

    return init


def observe_subclasses(loader_class: Any, state: HookState) -> None:
    """Observe the constructors of all classes that will be derived from DataLoader: of a job in
    which a loader is changed.
    """

    def init_subclass(cls: type[Any], /, **kwargs: Any) -> None:
        super(loader_class, cls).__init_subclass__(**kwargs)  # of Generic
        if cls.__module__ != _OBSERVED_ITSELF:
            state.patches.wrap(
                cls, "__init__", lambda original: _observe_outermost(original, state)
            )

    state.patches.put(loader_class, "__init_subclass__", classmethod(init_subclass))


def _observe_outermost(original: Function, state: HookState) -> Function:
    """Of a subclass; of the constructors of an object only the one that is called first gets other
    arguments here.
    """

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        change = (
            state.loader_change
            if state.is_on and state.identity.role != "worker" and MADE not in vars(self)
            else None
        )
        known = state.loader_numbers.identify(self, sys._getframe(1)) if change else None  # noqa: SLF001
        if change is None or known is None or not change.is_of(known.path, known.number):
            original(self, *args, **kwargs)
            return
        call = change_call(original, (self, *args), kwargs, change.arguments)
        vars(self)[REPLACED] = call.replaced
        original(*call.args, **call.kwargs)

    return init
