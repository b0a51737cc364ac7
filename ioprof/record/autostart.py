"""Starts recording in every Python process of a job, and in its forked children; called by `site/sitecustomize.py`."""

import os
from pathlib import Path

from ioprof.record import hooks
from ioprof.record.hooks.session import session


def start() -> None:
    """Record this process into the spool that the environment names, and install the hooks.

    Does nothing in a process of no recorded job, nor in one of ioprof's own, which emits its spans itself. Raises `CaptureError`.
    """
    spool = os.environ.get("IOPROF_SPOOL")
    if not spool or os.environ.get("IOPROF_HOOKS") == "off" or session.is_on:
        return
    session.begin(Path(spool), os.environ.get("IOPROF_GPU_WINDOW"), os.environ)
    hooks.install()
