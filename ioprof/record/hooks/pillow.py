"""Observes Pillow: `decode` spans, named for the format, of what turns an image file's bytes into pixels.

That is `load`, which every use of the pixels calls, and which does nothing when they are there. Reads that it makes are spans of
their own, and count as reads.
"""

from types import ModuleType

from ioprof.record.hooks.observers import loading
from ioprof.record.hooks.patches import patches


def observe(module: ModuleType) -> None:
    """Observe `PIL.ImageFile`, or a plugin, whose formats may bring a `load` of their own."""
    if module.__name__ == "PIL.ImageFile":
        patches.wrap(module.ImageFile, "load", loading)
        return
    for value in list(vars(module).values()):
        if isinstance(value, type) and value.__module__ == module.__name__ and _is_image_file(value):
            patches.wrap(value, "load", loading)


def _is_image_file(cls: type) -> bool:
    return any((base.__module__, base.__name__) == ("PIL.ImageFile", "ImageFile") for base in cls.__mro__)
