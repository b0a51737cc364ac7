"""The environment variables by which the processes of a job are recorded. All of them load this
module, so it imports nothing.

The capture library and `site/sitecustomize.py` run before any module of ioprof, and have these
names as literals.
"""

from typing import Final

SPOOL_VARIABLE: Final = "IOPROF_SPOOL"
"""Names the spool folder of the job that a process belongs to; a process without it is not
recorded."""
HOOKS_VARIABLE: Final = "IOPROF_HOOKS"
"""`off`: no Python hooks are installed; reads are recorded all the same."""
GPU_WINDOW_VARIABLE: Final = "IOPROF_GPU_WINDOW"
"""When GPUs are recorded; see `ioprof.instrument.gpu.plan`."""
NCCL_VARIABLE: Final = "IOPROF_NCCL"
"""`on`: NCCL is told to load ioprof's profiler plugin."""
NCCL_PLUGIN_VARIABLE: Final = "NCCL_PROFILER_PLUGIN"
"""NCCL's own: the plugin that it loads."""
DEBUG_VARIABLE: Final = "IOPROF_DEBUG"
"""Set to anything: a Python process that cannot be recorded writes the reason to stderr."""
CHANGE_VARIABLE: Final = "IOPROF_CHANGE"
"""A change of one of the job's loaders, see `ioprof.instrument.loader_change`; set by
`ioprof prove` alone."""
