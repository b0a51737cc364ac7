"""Observes where a job makes DataLoaders and what for, by which its next run tells them apart; changes one for `ioprof prove`.

What is written of a loader are its settings, and what its batches were used for, see `LoaderRecord.purposes`.

Hooks observe and change nothing, with this one exception: in a job that has the variable `CHANGE_VARIABLE`, which `ioprof prove`
alone sets, the constructors of the loaders that it names get other arguments.
"""

import sys
from typing import Any, Final

from ioprof.instrument.hooks.loader_numbers import MADE, made
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.loader_change import change_call, change_own_call

_REPLACED: Final = "_ioprof_replaced"
"""Attribute of a loader that was changed: the arguments as the job gave them."""
_MOST_NUMBERS: Final = 32
"""Of a path, that are written; later loaders have no number."""
_OBSERVED_ITSELF: Final = "torchdata.stateful_dataloader.stateful_dataloader"


class LoaderUse:
    """What the batches of one loader are used for."""

    def __init__(self, loader: Any, state: HookState) -> None:
        values, known = vars(loader), made(loader)
        sizes = values.get("batch_size"), getattr(values.get("batch_sampler"), "batch_size", None)
        self._record = state.record_fact
        self._facts = {
            "path": known.path if known else None,
            "number": known.number if known and known.number < _MOST_NUMBERS else None,
            "made_at": known.place if known else None,
            "class": type(loader).__name__,
            "dataset": type(values.get("dataset")).__name__,
            "batch_size": next((size for size in sizes if isinstance(size, int)), None),
            "workers": values.get("num_workers"),
            "prefetch": values.get("prefetch_factor"),
            "persistent_workers": values.get("persistent_workers"),
            "pin_memory": values.get("pin_memory"),
            "replaced": {name: _plain(value) for name, value in values.get(_REPLACED, {}).items()},
        }
        self._purposes = set[str]()

    @property
    def trains(self) -> bool:
        """Whether a step followed one of its batches."""
        return "step" in self._purposes

    def add(self, purpose: str) -> None:
        """One of its batches was received for that purpose."""
        if purpose not in self._purposes:
            self._purposes.add(purpose)
            self._record(made_loader={**self._facts, "purposes": [purpose]})


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else type(value).__name__


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
        taken: dict[str, Any] = vars(self).get(_REPLACED, {})
        call = change_own_call(original, (self, *args), kwargs, change.arguments, taken)
        vars(self)[_REPLACED] = {**call.replaced, **taken}
        original(*call.args, **call.kwargs)

    return init


def observe_subclasses(loader_class: Any, state: HookState) -> None:
    """Observe the constructors of all classes that will be derived from DataLoader: of a job in which a loader is changed."""

    def init_subclass(cls: type[Any], /, **kwargs: Any) -> None:
        super(loader_class, cls).__init_subclass__(**kwargs)  # of Generic
        if cls.__module__ != _OBSERVED_ITSELF:
            state.patches.wrap(cls, "__init__", lambda original: _observe_outermost(original, state))

    state.patches.put(loader_class, "__init_subclass__", classmethod(init_subclass))


def _observe_outermost(original: Function, state: HookState) -> Function:
    """Of a subclass; of the constructors of an object only the one that is called first gets other arguments here."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        change = state.loader_change if state.is_on and state.identity.role != "worker" and MADE not in vars(self) else None
        known = state.loader_numbers.identify(self, sys._getframe(1)) if change else None  # noqa: SLF001
        if change is None or known is None or not change.is_of(known.path, known.number):
            original(self, *args, **kwargs)
            return
        call = change_call(original, (self, *args), kwargs, change.arguments)
        vars(self)[_REPLACED] = call.replaced
        original(*call.args, **call.kwargs)

    return init
