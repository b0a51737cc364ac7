"""The capture library: where it is, and the environment that loads it and the hooks into the
processes of a job.
"""

import os
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ioprof.instrument import gpu
from ioprof.instrument.variables import (
    GPU_WINDOW_VARIABLE,
    HOOKS_VARIABLE,
    NCCL_PLUGIN_VARIABLE,
    NCCL_VARIABLE,
    SPOOL_VARIABLE,
)

__all__ = [
    "GPU_WINDOW_VARIABLE",
    "HOOKS_VARIABLE",
    "NCCL_PLUGIN_VARIABLE",
    "NCCL_VARIABLE",
    "PACKAGE",
    "SPOOL_VARIABLE",
    "environment",
    "first",
    "library",
    "nccl_plugin",
    "site",
]

PACKAGE: Final = Path(__file__).parent.parent
"""The folder of this installation of ioprof."""
LONGEST_PLUGIN: Final = 255
"""NCCL cuts a longer path of a plugin."""


def library(package: Path = PACKAGE) -> Path | None:
    """The preload library of an installation; None where it was not built."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
    candidates = (package / f"_capture{suffix}", package / "_capture.so")
    return next((path for path in candidates if path.is_file()), None)


def nccl_plugin(package: Path = PACKAGE) -> Path | None:
    """The plugin that NCCL loads; None where it was not built."""
    path = package / "_nccl_profiler.so"
    return path if path.is_file() else None


def site(package: Path = PACKAGE) -> Path:
    """The folder whose `sitecustomize.py` starts the hooks in every Python process that has it on
    its search path.
    """
    return package / "instrument" / "site"


def environment(
    spool: Path,
    base: Mapping[str, str],
    *,
    hooks: bool,
    package: Path = PACKAGE,
    with_library: bool = True,
) -> dict[str, str]:
    """`base`, changed so that every process started with it is recorded into `spool`, an absolute
    path.

    `with_library` is False where the job would not start with the capture library, see
    `preload_trial`.
    """
    changed = {SPOOL_VARIABLE: str(spool)}
    plugin = nccl_plugin(package)
    if (
        plugin
        and len(str(plugin)) < LONGEST_PLUGIN
        and not base.get(NCCL_PLUGIN_VARIABLE)
        and base.get(NCCL_VARIABLE) == "on"
    ):
        changed[NCCL_PLUGIN_VARIABLE] = str(plugin)
    if with_library and (found := library(package)) is not None:
        changed["LD_PRELOAD"] = first(str(found), base.get("LD_PRELOAD"), ":")
    if not hooks:
        return {**base, **changed, HOOKS_VARIABLE: "off"}
    changed["PYTHONPATH"] = first(str(site(package)), base.get("PYTHONPATH"), os.pathsep)
    return {**gpu.QUIET, **base, **changed}


def first(entry: str, others: str | None, separator: str) -> str:
    """An entry in front of the others of a search path, if there are any."""
    return f"{entry}{separator}{others}" if others else entry
