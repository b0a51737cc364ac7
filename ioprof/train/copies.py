"""How batches get from the host's memory to a device."""

from typing import Final

COPIES: Final = ("overlapped", "pinned", "pageable")
"""`overlapped`: from page-locked memory, on a stream of their own, so that a copy runs while the
batch before is computed. `pinned`: from page-locked memory, on the stream of the computation,
between two steps. `pageable`: from memory as it is, which the driver copies to page-locked memory
first; the host waits for it.
"""
