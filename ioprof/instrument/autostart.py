"""Starts recording in every Python process of a job, and in its forked children; called by `site/sitecustomize.py`."""

import os
from pathlib import Path

from ioprof.instrument import hooks
from ioprof.instrument.variables import GPU_WINDOW_VARIABLE, HOOKS_VARIABLE, SPOOL_VARIABLE


def start() -> None:
    """Record this process into the spool that the environment names, and install the hooks.

    Does nothing in a process of no recorded job, where the environment switches hooks off, and where they record already. Raises
    `CaptureError`.
    """
    spool = os.environ.get(SPOOL_VARIABLE)
    state = hooks.installed()
    if not spool or os.environ.get(HOOKS_VARIABLE) == "off" or (state is not None and state.is_on):
        return
    hooks.install(Path(spool), os.environ.get(GPU_WINDOW_VARIABLE), os.environ)
