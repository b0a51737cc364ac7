"""Starts recording in every Python process of a job, and in its forked children; called by `site/sitecustomize.py`."""

import os
from pathlib import Path

from ioprof.record import hooks
from ioprof.record.hooks.session import session
from ioprof.record.variables import GPU_WINDOW_VARIABLE, HOOKS_VARIABLE, SPOOL_VARIABLE


def start() -> None:
    """Record this process into the spool that the environment names, and install the hooks.

    Does nothing in a process of no recorded job, nor in one of ioprof's own, which emits its spans itself. Raises `CaptureError`.
    """
    spool = os.environ.get(SPOOL_VARIABLE)
    if not spool or os.environ.get(HOOKS_VARIABLE) == "off" or session.is_on:
        return
    session.begin(Path(spool), os.environ.get(GPU_WINDOW_VARIABLE), os.environ)
    hooks.install()
