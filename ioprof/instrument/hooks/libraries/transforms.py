"""Observes what is done to a sample: `transform` spans of the pipelines of torchvision and
albumentations, and of Pillow's methods.

Only the outermost counts: a pipeline, or a single method where there is none. Within a pipeline
each of its operations has a span of its own, named for its class. Decoding within it, where an
image is first used there, is no part of it: the span ends where that begins, and another follows.
"""

import sys
from types import ModuleType
from typing import Any, Final

from ioprof.instrument.hooks.observers import operating, transforming
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState

PILLOW_METHODS: Final = (
    "convert",
    "crop",
    "filter",
    "point",
    "quantize",
    "reduce",
    "resize",
    "rotate",
    "thumbnail",
    "tobytes",
    "transform",
    "transpose",
)
"""Methods of an image that compute pixels; `tobytes` is what makes an array of them."""
_METHODS: Final = ("forward", "__call__")
"""A torch module has the one, any other class the other."""
_DEEPEST: Final = 8
"""Pipelines in pipelines that are looked into."""


def observe(module: ModuleType, state: HookState) -> None:
    """Observe a module that has a `Compose`, or the base class of torchvision's transforms v2, or
    `PIL.Image`.
    """
    if module.__name__ == "PIL.Image":
        for name in PILLOW_METHODS:
            # which the compiler cannot trace, observed or not
            state.patches.wrap(module.Image, name, transforming)
        return
    if module.__name__.endswith("._transform"):
        state.patches.wrap(
            module.Transform,
            "forward",
            lambda original: _untraced(original, operating(original, True)),
        )
        return
    for name in _METHODS:
        if name in vars(module.Compose):
            state.patches.wrap(
                module.Compose,
                name,
                lambda original: _observe_pipeline(original, module.Compose, state),
            )
            break


def _is_traced() -> bool:
    torch: Any = sys.modules.get("torch")  # some of these libraries do without
    if torch is None or not hasattr(torch, "compiler"):
        return False
    from ioprof.instrument.hooks.pytorch.compiler import is_compiling

    return is_compiling()


def _untraced(original: Function, observing: Function) -> Function:
    """Of torch modules, which the compiler traces: there the original is called."""

    def transform(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs) if _is_traced() else observing(self, *args, **kwargs)

    return transform


def _observe_pipeline(original: Function, pipeline: type, state: HookState) -> Function:
    """An observer of a `Compose`, which observes the classes of its operations when it is first
    called.
    """
    observing, known = transforming(original, pipeline.__name__), set[int]()

    def transform(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_traced():
            return original(self, *args, **kwargs)
        # another object at the same place is not observed anew, and its classes mostly are
        if id(self) not in known:
            known.add(id(self))
            _observe_operations(self, pipeline, state)
        return observing(self, *args, **kwargs)

    return transform


def _observe_operations(pipeline: Any, cls: type, state: HookState, depth: int = 0) -> None:
    """Observe the method of each operation's class that the pipeline calls; pipelines within are
    looked into.
    """
    operations = vars(pipeline).get("transforms") if hasattr(pipeline, "__dict__") else None
    for operation in operations if isinstance(operations, list | tuple) else ():
        if isinstance(operation, cls):
            if depth < _DEEPEST:
                _observe_operations(operation, cls, state, depth + 1)
            continue
        if isinstance(operation, type(_untraced)):  # a function, which has no class of its own
            continue
        for owner in type(operation).__mro__:
            name = next((name for name in _METHODS if name in vars(owner)), None)
            if owner.__module__.startswith("torch.nn.") or owner is object:
                break  # a module whose own class has no method: nobody else's are observed
            if name is not None:
                # Its class may be used elsewhere too, as in the model: only within pipelines it is
                # an operation of one.
                state.patches.wrap(
                    owner, name, lambda original: _untraced(original, operating(original, False))
                )
                break
