"""Observes decoders that are plain functions, OpenCV's and torchvision's: `decode` spans, named for the function.

Those that also read the file are decoders too: reads within them are spans of their own, and count as reads.
"""

from types import ModuleType
from typing import Any, Final

from ioprof.clock import monotonic_ns
from ioprof.record.hooks.observers import decoded
from ioprof.record.hooks.patches import Function, Observer, patches
from ioprof.record.hooks.session import session

FUNCTIONS: Final = {
    "cv2": ("imdecode", "imdecodemulti", "imread", "imreadmulti"),
    "torchvision.io.image": (
        "decode_image", "decode_jpeg", "decode_png", "decode_gif", "decode_webp", "decode_avif", "decode_heic", "read_image",
    ),
}  # fmt: skip
"""Decoders by their module."""


def observe(module: ModuleType) -> None:
    """Observe a module of `FUNCTIONS`."""
    for name in FUNCTIONS[module.__name__]:
        patches.wrap(module, name, _decoding(name))


def _decoding(name: str) -> Observer:
    def observer(original: Function) -> Function:
        def decode(*args: Any, **kwargs: Any) -> Any:
            here = session.thread.here
            if here.decoding or not session.is_on:
                return original(*args, **kwargs)
            if session.asleep:
                session.wake()
            here.decoding = True
            start_ns = monotonic_ns()
            try:
                return original(*args, **kwargs)
            finally:
                end_ns = monotonic_ns()
                here.decoding = False
                decoded(start_ns, end_ns, name)

        return decode

    return observer
