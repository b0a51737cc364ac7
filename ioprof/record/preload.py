"""The capture library: where it is, the environment that takes it and the hooks into a job, and whether it is in this process."""

import ctypes
import os
import sysconfig
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ioprof.record import gpu

SPOOL_VARIABLE = "IOPROF_SPOOL"
"""Names the spool folder of the job that a process belongs to; a process without it is not recorded."""
HOOKS_VARIABLE = "IOPROF_HOOKS"
"""`off`: the Python hooks stay out, because the job emits its spans itself."""

GPU_WINDOW_VARIABLE = "IOPROF_GPU_WINDOW"
"""When GPUs are recorded; see `ioprof.record.gpu.plan`."""


def library() -> Path | None:
    """The preload library of this installation; None where it was not built."""
    package = Path(__file__).parent.parent
    suffix = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
    candidates = (package / f"_capture{suffix}", package / "_capture.so")
    return next((path for path in candidates if path.is_file()), None)


def environment(spool: Path, base: Mapping[str, str], *, hooks: bool) -> dict[str, str]:
    """`base`, changed so that every process started with it is recorded into `spool`, an absolute path."""
    changed = {SPOOL_VARIABLE: str(spool)}
    if (found := library()) is not None:
        changed["LD_PRELOAD"] = _first(str(found), base.get("LD_PRELOAD"), ":")
    if not hooks:
        return {**base, **changed, HOOKS_VARIABLE: "off"}
    changed["PYTHONPATH"] = _first(str(Path(__file__).parent / "site"), base.get("PYTHONPATH"), os.pathsep)
    return {**gpu.QUIET, **base, **changed}


@cache
def sees_reads() -> bool:
    """Whether the library is in this process and records: then nobody else need record its reads."""
    try:
        is_recording = ctypes.CDLL(None).ioprof_capture_is_recording
    except (OSError, AttributeError):
        return False
    is_recording.restype = ctypes.c_int
    return bool(is_recording())


def _first(entry: str, others: str | None, separator: str) -> str:
    return f"{entry}{separator}{others}" if others else entry
