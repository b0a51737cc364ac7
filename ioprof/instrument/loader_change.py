"""A change of the arguments of torch's DataLoader, for one of a job's loaders: what `ioprof prove`
asks for by a variable.

A class may take an argument itself, and do more with it than hand it on. So it is changed where it
is first taken by name: in the constructor of a subclass, or else in that of DataLoader.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

ARGUMENTS: Final = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory")
"""What can be changed."""
_WORKERS: Final = "num_workers"
_NEEDS_WORKERS: Final[dict[str, Any]] = {
    "prefetch_factor": None,
    "persistent_workers": False,
    "timeout": 0,
    "multiprocessing_context": None,
}
"""Arguments that a loader without workers refuses, when it is made or when it is iterated, with the
value that stands for none."""


@dataclass(frozen=True)
class LoaderChange:
    """Which loaders of a process are changed, and how."""

    arguments: Mapping[str, Any]
    """New values, by the names in `ARGUMENTS`."""
    loaders: Mapping[str, frozenset[int] | None]
    """By path (see `hooks.loader_numbers`) the numbers of the loaders that are changed. None: all
    of that path."""

    @classmethod
    def parse(cls, text: str) -> "LoaderChange":
        """What `to_text` wrote. Raises ValueError."""
        import json  # only processes of such a job need it

        try:
            value = json.loads(text)
            loaders = {
                str(path): None if found is None else frozenset(map(int, found))
                for path, found in value["loaders"].items()
            }
            arguments = dict(value["arguments"])
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"no change of a loader: {error!r}") from None
        if unknown := arguments.keys() - set(ARGUMENTS):
            raise ValueError(f"no argument that can be changed: {', '.join(sorted(unknown))}")
        return cls(arguments, loaders)

    def to_text(self) -> str:
        """For the variable."""
        import json

        loaders = {
            path: None if numbers is None else sorted(numbers)
            for path, numbers in self.loaders.items()
        }
        return json.dumps({"arguments": dict(self.arguments), "loaders": loaders})

    def is_of(self, path: str | None, number: int | None) -> bool:
        """Whether the loader of that path, the one with that number, is changed."""
        if path is None or path not in self.loaders:
            return False
        numbers = self.loaders[path]
        return numbers is None or number in numbers


@dataclass(frozen=True)
class Call:
    """The arguments of a call of a constructor, `self` included."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    replaced: dict[str, Any]
    """Values before the change, of the arguments that the constructor takes by name."""


def change_call(
    constructor: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    new: Mapping[str, Any],
) -> Call:
    """A call with the values of `new`, where the constructor has a parameter of that name or was
    given it as a keyword.

    A call that does not fit the constructor stays as it is.
    """
    import inspect

    try:
        bound = inspect.signature(constructor).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return Call(args, kwargs, {})
    parameters = bound.signature.parameters
    rest = next((name for name, each in parameters.items() if each.kind is each.VAR_KEYWORD), None)
    keywords: dict[str, Any] = bound.arguments.get(rest, {}) if rest else {}
    replaced = dict[str, Any]()
    for name, value in new.items():
        if name in parameters and name != rest:
            default = parameters[name].default
            replaced[name] = bound.arguments.get(
                name, None if default is inspect.Parameter.empty else default
            )
            bound.arguments[name] = value
        elif name in keywords:
            replaced[name], keywords[name] = keywords[name], value
    return Call(bound.args, bound.kwargs, replaced)


def change_own_call(
    constructor: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    new: Mapping[str, Any],
    taken: Collection[str],
) -> Call:
    """A call of DataLoader's own constructor with the values of `new`, but for those that a
    subclass has `taken` already.

    It keeps the constructor's rules: what needs workers is left out without them, and not given to
    a loader that has none.
    """
    is_own = _WORKERS in new and _WORKERS not in taken
    workers = (
        new[_WORKERS]
        if is_own
        else change_call(constructor, args, kwargs, {_WORKERS: 0}).replaced.get(_WORKERS)
    )
    own = {
        name: value
        for name, value in new.items()
        if name not in taken and (workers or name not in _NEEDS_WORKERS)
    }
    if not workers and _WORKERS in new:
        own |= _NEEDS_WORKERS
    call = change_call(constructor, args, kwargs, own)
    return Call(
        call.args,
        call.kwargs,
        {name: was for name, was in call.replaced.items() if name in new or was != own[name]},
    )
