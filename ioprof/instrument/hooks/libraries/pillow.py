"""Observes Pillow: `decode` spans, named for the format, of what turns an image file's bytes into
pixels.

That is `load`, which every use of the pixels calls, and which does nothing when they are there.
Reads in it are spans of their own, and count as reads.
"""

from types import ModuleType

from ioprof.instrument.hooks.observers import loading
from ioprof.instrument.hooks.state import HookState


def observe(module: ModuleType, state: HookState) -> None:
    """Observe `PIL.ImageFile`, or a plugin, whose formats may have a `load` of their own."""
    if module.__name__ == "PIL.ImageFile":
        state.patches.wrap(module.ImageFile, "load", loading)
        return
    for value in list(vars(module).values()):
        if (
            isinstance(value, type)
            and value.__module__ == module.__name__
            and _is_image_file(value)
        ):
            state.patches.wrap(value, "load", loading)


def _is_image_file(cls: type) -> bool:
    return any(
        (base.__module__, base.__name__) == ("PIL.ImageFile", "ImageFile") for base in cls.__mro__
    )
