"""Observes Pillow: `decode` spans, named for the format, of what turns an image file's bytes into pixels.

That is `load`, which every use of the pixels calls, and which does nothing when they are there. Reads that it makes are spans of
their own, and count as reads.
"""

from types import ModuleType
from typing import Any

from ioprof.clock import monotonic_ns
from ioprof.record.hooks import transforms
from ioprof.record.hooks.patches import Function, patches
from ioprof.record.hooks.session import session
from ioprof.record.span import emit


def observe(module: ModuleType) -> None:
    """Observe `PIL.ImageFile`, or a plugin, whose formats may bring a `load` of their own."""
    if module.__name__ == "PIL.ImageFile":
        patches.wrap(module.ImageFile, "load", _load)
        return
    for value in list(vars(module).values()):
        if isinstance(value, type) and value.__module__ == module.__name__ and _is_image_file(value):
            patches.wrap(value, "load", _load)


def _is_image_file(cls: type) -> bool:
    return any((base.__module__, base.__name__) == ("PIL.ImageFile", "ImageFile") for base in cls.__mro__)


def _load(original: Function) -> Function:
    def load(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not session.is_on:
            return original(self, *args, **kwargs)
        here = session.thread.here
        if here.loading:  # a format's own load, which calls the common one
            here.decodes = here.decodes or bool(getattr(self, "tile", None))
            return original(self, *args, **kwargs)
        here.loading, here.decodes = True, bool(getattr(self, "tile", None))
        start_ns = monotonic_ns()
        try:
            return original(self, *args, **kwargs)
        finally:
            here.loading = False
            if here.decodes:
                end_ns = monotonic_ns()
                if session.asleep:
                    session.wake()
                transforms.interrupted(here, start_ns, end_ns)
                emit("decode", start_ns, end_ns, self.format, batch=here.batch)

    return load
