"""The capture library: where it is, the environment that takes it and the hooks into a job, and whether it is in this process."""

import ctypes
import os
import sysconfig
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from ioprof.record import gpu
from ioprof.record.variables import GPU_WINDOW_VARIABLE, HOOKS_VARIABLE, SPOOL_VARIABLE

__all__ = ["GPU_WINDOW_VARIABLE", "HOOKS_VARIABLE", "PACKAGE", "SPOOL_VARIABLE", "environment", "library", "sees_reads", "site"]

PACKAGE: Final = Path(__file__).parent.parent
"""The folder of this installation of ioprof."""


def library(package: Path = PACKAGE) -> Path | None:
    """The preload library of an installation; None where it was not built."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
    candidates = (package / f"_capture{suffix}", package / "_capture.so")
    return next((path for path in candidates if path.is_file()), None)


def site(package: Path = PACKAGE) -> Path:
    """The folder whose `sitecustomize.py` starts the hooks in every Python process that has it on its search path."""
    return package / "record" / "site"


def environment(spool: Path, base: Mapping[str, str], *, hooks: bool, package: Path = PACKAGE) -> dict[str, str]:
    """`base`, changed so that every process started with it is recorded into `spool`, an absolute path."""
    changed = {SPOOL_VARIABLE: str(spool)}
    if (found := library(package)) is not None:
        changed["LD_PRELOAD"] = _first(str(found), base.get("LD_PRELOAD"), ":")
    if not hooks:
        return {**base, **changed, HOOKS_VARIABLE: "off"}
    changed["PYTHONPATH"] = _first(str(site(package)), base.get("PYTHONPATH"), os.pathsep)
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
