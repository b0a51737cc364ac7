"""The structures of capture files and collective files as NumPy types, derived from
`wire_format.py` and `collective_format.py`.

`native/FORMAT.md` and `native/COLLECTIVES.md` explain them.
"""

from typing import Any, Final

import numpy as np

from ioprof.format import collective_format
from ioprof.format.wire_format import CHUNK_HEADER, FILE_HEADER, RECORD, Structure, array_type


def _numpy_type(type_: str) -> str:
    name, length = array_type(type_)
    if length:
        return f"{'S' if name == 'text' else 'V'}{length}"
    return np.dtype("uint64" if name == "atomic64" else name).newbyteorder("<").str


def _dtype(fields: Structure) -> np.dtype[Any]:
    return np.dtype([(name, _numpy_type(type_)) for name, type_, _ in fields])


RECORD_DTYPE: Final = _dtype(RECORD)
"""One record: a span, a string or an owner record."""

CHUNK_HEADER_DTYPE: Final = _dtype(CHUNK_HEADER)
"""The start of a chunk."""

FILE_HEADER_DTYPE: Final = _dtype(FILE_HEADER)
"""The start of a capture file; the rest of its `HEADER_BYTES` is zero."""

COLLECTIVE_HEADER_DTYPE: Final = _dtype(collective_format.HEADER)
"""The start of a collective file."""

COMMUNICATOR_DTYPE: Final = _dtype(collective_format.COMMUNICATOR)
"""An entry of its table of communicators."""

COLLECTIVE_RECORD_DTYPE: Final = _dtype(collective_format.RECORD)
"""One record of a collective file."""
