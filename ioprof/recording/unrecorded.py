"""Runs a command in place of ioprof where nothing can be recorded, such as without memory for
ioprof or without room in TMPDIR.

Imports little: it has to work where hardly anything else does.
"""

import errno
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from ioprof.errors import NOT_EXECUTABLE, NOT_FOUND
from ioprof.recording.signals_given import signals_as_given, signals_ignored_by_caller

if TYPE_CHECKING:
    from subprocess import Popen


_begun: list[int] = []
"""Process ids of commands that this process has started: none of them may be run a second time."""


def begun(process: "Popen[bytes]") -> "Popen[bytes]":
    """Note that the command has been started, as this process."""
    _begun.append(process.pid)
    return process


def has_begun() -> bool:
    """Whether a command has been started, so that `run_unrecorded` would run it twice."""
    return bool(_begun)


def as_script(command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The command by which a shell runs a script that does not name its interpreter, as execvp(3)
    does.
    """
    return [
        "/bin/sh",
        shutil.which(command[0], path=environment.get("PATH")) or command[0],
        *command[1:],
    ]


def run_unrecorded(command: Sequence[str], environment: Mapping[str, str], why: str) -> NoReturn:
    """Become the command, which must not have been started; one line says why it is not
    recorded.
    """
    assert not _begun, "the command would run twice"
    try:
        sys.stderr.write(
            f"ioprof: {' '.join(why.split())}: the command runs without being recorded\n"
        )
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # standard error is full or closed
        pass
    try:
        with signals_as_given(signals_ignored_by_caller()):
            try:
                os.execvpe(command[0], list(command), environment)  # noqa: S606 - in place of this process
            except OSError as error:
                if error.errno != errno.ENOEXEC:
                    raise
                script = as_script(command, environment)
                os.execvpe(script[0], script, environment)  # noqa: S606
    except FileNotFoundError:
        raise SystemExit(NOT_FOUND) from None
    except OSError:
        raise SystemExit(NOT_EXECUTABLE) from None
