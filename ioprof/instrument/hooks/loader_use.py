"""What a loader is used for. What is written of it are its settings, and what its batches were used
for, see `LoaderRecord.purposes`.
"""

from collections.abc import Callable
from typing import Any, Final

from ioprof.instrument.hooks.loader_numbers import made

REPLACED: Final = "_ioprof_replaced"
"""Attribute of a loader that was changed: the arguments as the job gave them."""
_MOST_NUMBERS: Final = 32
"""Of a path, that are written; later loaders have no number."""


class LoaderUse:
    """What the batches of one loader are used for."""

    def __init__(self, loader: Any, record_fact: Callable[..., None]) -> None:
        values, known = vars(loader), made(loader)
        sizes = values.get("batch_size"), getattr(values.get("batch_sampler"), "batch_size", None)
        self._record = record_fact
        self._facts = {
            "path": known.path if known else None,
            "number": known.number if known and known.number < _MOST_NUMBERS else None,
            "made_at": known.place if known else None,
            "class": type(loader).__name__,
            "dataset": type(values.get("dataset")).__name__,
            "sampler": _sampler(values),
            "batch_size": next((size for size in sizes if isinstance(size, int)), None),
            "workers": values.get("num_workers"),
            "prefetch": values.get("prefetch_factor"),
            "persistent_workers": values.get("persistent_workers"),
            "pin_memory": values.get("pin_memory"),
            "replaced": {name: _plain(value) for name, value in values.get(REPLACED, {}).items()},
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


def _sampler(values: dict[str, Any]) -> str:
    batches = type(values.get("batch_sampler")).__name__
    own = batches in ("BatchSampler", "NoneType")
    return type(values.get("sampler")).__name__ if own else batches


def _plain(value: Any) -> Any:
    return (
        value
        if value is None or isinstance(value, bool | int | float | str)
        else type(value).__name__
    )
