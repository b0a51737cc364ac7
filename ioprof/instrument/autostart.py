"""Starts recording in every Python process of a job, and in its forked children; called by
`site/sitecustomize.py`.
"""

import os
import sys
from collections.abc import Collection, Sequence
from importlib.machinery import FrozenImporter, PathFinder
from pathlib import Path
from typing import Final

from ioprof.instrument import hooks
from ioprof.instrument.hooks import (
    state as _state,  # noqa: F401 - all that the start needs is imported with this module
)
from ioprof.instrument.variables import GPU_WINDOW_VARIABLE, HOOKS_VARIABLE, SPOOL_VARIABLE

LATER: Final = frozenset(
    (
        "ast",
        "collections",
        "copy",
        "ctypes",
        "dataclasses",
        "datetime",
        "dis",
        "fcntl",
        "functools",
        "gc",
        "hashlib",
        "importlib",
        "inspect",
        "itertools",
        "json",
        "linecache",
        "math",
        "mmap",
        "multiprocessing",
        "opcode",
        "operator",
        "platform",
        "queue",
        "re",
        "resource",
        "select",
        "shutil",
        "statistics",
        "struct",
        "subprocess",
        "sysconfig",
        "tempfile",
        "token",
        "tokenize",
    )
)
"""Python's modules that ioprof imports in a job only when it needs them, and those that these
import."""


def other_module(path: Sequence[str], loaded: Collection[str]) -> str | None:
    """The file of the job's in front of the standard library that has the name of a module that
    ioprof needs; None: there is none.

    Such a job gets its own module, or the error that this raises, where it imports that name.
    ioprof must have imported neither, and must not have put Python's own in its place. `path` is
    the search path up to the standard library, to which Python adds the folder of the script when
    it has started; `loaded` are modules that were loaded before ioprof.
    """
    needed = (LATER | set(sys.modules)) & sys.stdlib_module_names - set(
        sys.builtin_module_names
    ) - set(loaded)
    names = [name for name in needed if not FrozenImporter.find_spec(name)]
    known = set(sys.path_importer_cache)
    try:
        for place in (*path, *_script_folder()):
            for name in names:
                spec = PathFinder.find_spec(name, [place])
                if spec is not None and spec.loader is not None:
                    return spec.origin or place
    finally:
        # what the job adds there meanwhile, it must find
        for place in set(sys.path_importer_cache) - known:
            del sys.path_importer_cache[place]
    return None


def _script_folder() -> tuple[str, ...]:
    """The entry that Python puts in front of the search path before it runs the job's program."""
    script = next(iter(getattr(sys, "argv", ())), "")
    if sys.flags.safe_path:
        return ()
    if script in ("", "-c", "-m"):
        return ("",)
    return (script if os.path.isdir(script) else os.path.dirname(os.path.realpath(script)),)


def start() -> None:
    """Record this process into the spool that the environment names, and install the hooks.

    Does nothing in a process of no recorded job, where the environment switches hooks off, and
    where they record already. Raises `CaptureError`.
    """
    spool = os.environ.get(SPOOL_VARIABLE)
    state = hooks.installed()
    if not spool or os.environ.get(HOOKS_VARIABLE) == "off" or (state is not None and state.is_on):
        return
    hooks.install(Path(spool), os.environ.get(GPU_WINDOW_VARIABLE), os.environ)
