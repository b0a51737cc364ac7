"""Observes what is done to a sample: `transform` spans of the pipelines of torchvision and albumentations, and of Pillow's methods.

Only the outermost counts: a pipeline, or a single method where there is none. Decoding that happens within, where an image is first
used there, is no part of it: the span ends where that begins, and another follows.
"""

import sys
from types import ModuleType
from typing import Any, Final

from ioprof.record.hooks.observers import transforming
from ioprof.record.hooks.patches import Function, patches

PILLOW_METHODS: Final = (
    "convert", "crop", "filter", "point", "quantize", "reduce", "resize", "rotate", "thumbnail", "tobytes", "transform",
    "transpose",
)  # fmt: skip
"""Methods of an image that compute pixels; `tobytes` is what makes an array of them."""


def observe(module: ModuleType) -> None:
    """Observe a module that has a `Compose`, or `PIL.Image`."""
    if module.__name__ == "PIL.Image":
        for name in PILLOW_METHODS:
            patches.wrap(module.Image, name, transforming)  # which the compiler cannot read through, observed or not
        return
    for name in ("forward", "__call__"):  # a torch module has the one, any other class the other
        if name in vars(module.Compose):
            patches.wrap(module.Compose, name, _transforming_untraced)
            break


def _is_traced() -> bool:
    torch: Any = sys.modules.get("torch")  # some of these libraries do without
    return torch is not None and hasattr(torch, "compiler") and torch.compiler.is_compiling()


def _transforming_untraced(original: Function) -> Function:
    """Of torch modules, which the compiler reads: it shall find nothing."""
    observing = transforming(original)

    def transform(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs) if _is_traced() else observing(self, *args, **kwargs)

    return transform
