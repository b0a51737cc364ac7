"""The environment variables that tell a job's processes that they are recorded. All of them load this, so it imports nothing.

The capture library (`native/live.h`) and `site/sitecustomize.py`, which run before any module of ioprof, spell them out themselves.
"""

from typing import Final

SPOOL_VARIABLE: Final = "IOPROF_SPOOL"
"""Names the spool folder of the job that a process belongs to; a process without it is not recorded."""
HOOKS_VARIABLE: Final = "IOPROF_HOOKS"
"""`off`: the Python hooks stay out, because the job emits its spans itself."""
GPU_WINDOW_VARIABLE: Final = "IOPROF_GPU_WINDOW"
"""When GPUs are recorded; see `ioprof.record.gpu.plan`."""
DEBUG_VARIABLE: Final = "IOPROF_DEBUG"
"""Set to anything: a Python process that cannot be recorded says why."""
