"""Asks libraries that the job has loaded how many threads each of their pools uses; starts none, and imports nothing."""

import os
import sys
from typing import TYPE_CHECKING, Final

from ioprof.instrument.host import host

if TYPE_CHECKING:
    from ioprof.instrument.hooks.state import HookState

_LIBRARIES: Final = {
    "torch": ("torch", "get_num_threads"),
    "OpenCV": ("cv2", "getNumThreads"),
    "MKL": ("mkl", "get_max_threads"),
    "numexpr": ("numexpr", "get_num_threads"),
}
"""Name of a library: the module, and its function that returns the number of threads."""


def record_thread_pools(state: "HookState") -> None:
    """Record the sizes as a fact of this process.

    Called when the libraries have done work here or will do none any more: the first call of such a function may fix the number,
    which a program could set otherwise before.
    """
    sizes = {}
    for library, (module, function) in _LIBRARIES.items():
        try:
            sizes[library] = int(getattr(sys.modules[module], function)())
        except Exception:  # noqa: S112 - not loaded, only in part, or an unknown version of it
            continue
    if sizes:
        state.record_fact(thread_pools=sizes, host=host(), pid=os.getpid())
