"""Asks libraries that the job has loaded how many threads each of their pools uses; starts none,
and imports nothing.
"""

import sys
from typing import Final

_LIBRARIES: Final = {
    "torch": ("torch", "get_num_threads"),
    "OpenCV": ("cv2", "getNumThreads"),
    "MKL": ("mkl", "get_max_threads"),
    "numexpr": ("numexpr", "get_num_threads"),
}
"""Name of a library: the module, and its function that returns the number of threads."""


def thread_pool_sizes() -> dict[str, int]:
    """The number of threads by library, of those that are loaded."""
    sizes = {}
    for library, (module, function) in _LIBRARIES.items():
        try:
            sizes[library] = int(getattr(sys.modules[module], function)())
        except Exception:  # noqa: S112 - not loaded, only in part, or an unknown version of it
            continue
    return sizes
