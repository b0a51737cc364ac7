"""Names of loaders, by which a report tells them apart: the class of the dataset, and a number
where there are several of it.
"""

import weakref
from typing import Any, Final

_VIEWS: Final = "torch.utils.data.dataset"
"""Module of the classes that show a part of another dataset."""


class LoaderNames:
    """The datasets of this process's loaders, by the name that each has."""

    def __init__(self) -> None:
        self._holders: dict[str, weakref.ref[Any] | int] = {}

    def name_of(self, dataset: Any) -> str:
        """The name of a dataset: `Images`, and `Images #2` for another object of that class while
        the first exists.
        """
        cls, inner = type(dataset), None
        if cls.__module__ == _VIEWS:
            inner = vars(dataset).get("dataset")
        base = cls.__name__ if inner is None else f"{cls.__name__} of {type(inner).__name__}"
        number = 1
        while not self._is_free_for(name := base if number == 1 else f"{base} #{number}", dataset):
            number += 1
        return name

    def _is_free_for(self, name: str, dataset: Any) -> bool:
        holder = self._holders.get(name)
        if isinstance(holder, weakref.ref):
            held = holder()
            if held is dataset:
                return True
            if held is not None:
                return False
        elif holder is not None and holder != id(dataset):
            return False
        try:
            self._holders[name] = weakref.ref(dataset)
        except TypeError:  # a list, for example
            self._holders[name] = id(dataset)
        return True
