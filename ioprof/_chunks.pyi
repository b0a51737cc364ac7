"""The spans of some chunks of a capture file, in C (native/chunks.c). All buffers are contiguous
arrays.
"""

from typing import Any

from numpy import bool_, int64, uint8
from numpy.typing import NDArray

def find_spans(
    chunks: NDArray[uint8], num_bytes: int, is_stale: NDArray[bool_], wanted: NDArray[bool_], num_kinds: int, num_sources: int,  # noqa: E501
    num_objects: int, latest_ns: int,
    records: NDArray[Any], tids: NDArray[int64], strings: NDArray[int64], /,
) -> tuple[int, list[tuple[int, bytes]], tuple[int, int, int, int, int]]:  # fmt: skip
    """Copy the valid spans of whole chunks, of which `num_bytes` were read, to `records` and their
    threads to `tids`: those whose kind, a number below 256, is `wanted`. `strings` is memory for a
    place per slot, or empty: then no strings are returned.

    Returns the number of spans, and the numbers and bytes of the strings; then how often a chunk
    has fewer slots than its header says, a slot is neither a span nor a string, a kind is unknown,
    times are impossible, and a source is unknown. Raises ValueError if the chunks are not whole or
    a buffer is too small.
    """
