"""What the job calls: `span`, `emit` and `intern`. Nothing happens until
`ioprof.instrument.recorder.start`.

    with span("decode"):                           # one of schema.KINDS
        image = decode(data)
    with span("read", file=intern(path)) as read:  # attributes can be set inside the block
        data = file.read()
        read.bytes, read.source = len(data), STORAGE
    with span("tokenize"):                         # any other string: a span of the user's own,
                                                   shown and never charged
        ...
    emit("kernel", start_ns, end_ns, stream=0)     # timed elsewhere, on CLOCK_MONOTONIC

The functions are those of the extension; in an interpreter that cannot load it they are those of
the writer in Python (`ring`). This module loads neither NumPy nor anything else that a job without
ioprof would not.
"""

from typing import Final

try:
    from ioprof._native import emit, intern, redirect, span
except ImportError:  # this interpreter cannot load it
    from ioprof.instrument.ring import emit, intern, redirect, span

__all__ = [
    "PAGE_CACHE",
    "STORAGE",
    "UNKNOWN",
    "emit",
    "has_extension",
    "intern",
    "redirect",
    "span",
]

has_extension: Final = span.__module__ != "ioprof.instrument.ring"
"""Whether the functions are those of the extension."""

STORAGE: Final = 1
"""The bytes of a read came from the device or the network. These are 1 + the place in
`schema.SOURCES`."""
PAGE_CACHE: Final = 2
"""The bytes of a read came from this machine's memory."""
UNKNOWN: Final = 3
"""It is not known where the bytes of a read came from."""
