"""Folders for the temporary files of programs that tests start."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

_SOCKET: Final = "/pymp-xxxxxxxx/listener-xxxxxxxx"
"""What `multiprocessing` adds for the sockets by which a DataLoader's worker sends tensors."""
_MOST_BYTES: Final = 107 - len(_SOCKET)
"""A socket's path has at most 107 (man unix). Where one has more, the worker's tensors are lost,
and the job waits for ever."""


def temporary_folder(path: Path) -> Path:
    """Make this folder if it is not there, and return the path to give to a program as TMPDIR.

    Where its own path is too long for sockets in it, it becomes a link to a folder of the same file
    system that is removed when the tests end.
    """
    if not path.exists():
        # where it is, is what a test is about
        is_elsewhere = path.parent.stat().st_dev != os.stat(tempfile.gettempdir()).st_dev
        if is_elsewhere or len(os.fsencode(path)) <= _MOST_BYTES:
            path.mkdir()
        else:
            folder = tempfile.mkdtemp(prefix="jobs-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            path.symlink_to(folder)
    return path.resolve() if path.is_symlink() else path
