"""The command `ioprof`, also as `python -m ioprof`: its own modules come from its own installation,
whatever the job's are.

The environment and the folder are the job's. A `PYTHONPATH` of `module load` may name another
Python's numpy, a working directory may hold a `json.py`, and `PYTHONWARNINGS=error` would end
ioprof instead of a warning in the job.
"""

import os
import resource
import sys
from typing import Final

_OF_INTERPRETER: Final = ("PYTHON_CPU_COUNT", "PYTHON_FROZEN_MODULES", "PYTHON_GIL", "PYTHON_JIT")
"""The only variables with PYTHON_ in front that mean something to Python. Images of containers set
PYTHON_VERSION, for example."""
_RESERVE_BYTES: Final = 4 << 20
_NEEDED_BYTES: Final = 110 << 20
"""Data that loading ioprof's libraries takes on two cores. With less, OpenBLAS does not raise an
error but ends the process."""
_PACKAGES: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder that ioprof was imported from."""


def program() -> int:
    """What the command `ioprof` calls."""
    _isolate()
    # both before the libraries, which may leave no memory for them
    from ioprof.process import (
        started_environment,
    )
    from ioprof.recording.unrecorded import has_begun, run_unrecorded

    environment = started_environment()
    reserve = bytearray(_RESERVE_BYTES)
    try:
        _refuse_small_memory()
        from ioprof.cli import program as of_command_line

        return of_command_line()
    except (ImportError, MemoryError, OSError, RuntimeError, SystemError) as error:
        if sys.argv[1:2] != ["record"] or "--" not in sys.argv or has_begun():
            raise
        reserve.clear()  # under a limit of memory the libraries may have taken all of the rest
        why = f"cannot start ({type(error).__name__} {error})"
    return run_unrecorded(sys.argv[sys.argv.index("--") + 1 :], environment, why)


def _refuse_small_memory() -> None:
    """Raise MemoryError under a limit that ioprof's libraries do not fit in (setrlimit(2),
    RLIMIT_DATA and RLIMIT_AS).
    """
    for limit in (resource.RLIMIT_DATA, resource.RLIMIT_AS):
        given = resource.getrlimit(limit)[0]
        if given != resource.RLIM_INFINITY and given < _NEEDED_BYTES:
            raise MemoryError(f"a limit of {given >> 20} MiB of memory")


def _isolate() -> None:
    """Leave out what the environment and the working directory give Python; the environment itself
    stays as it is, for the job.

    An installation that is found by PYTHONPATH needs it, for ioprof's libraries too.
    """
    if not sys.flags.safe_path and sys.path and os.path.abspath(sys.path[0]) != _PACKAGES:
        del sys.path[0]  # the script's folder, or the working directory
    names = [name for name in os.environ if name.startswith("PYTHON")]
    if sys.flags.ignore_environment or not any(
        not name.startswith("PYTHON_") or name in _OF_INTERPRETER for name in names
    ):
        return
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if _PACKAGES in {os.path.abspath(entry) for entry in entries if entry} or (
        not sys.flags.safe_path and _is_here()
    ):
        return
    from ioprof.process import own_python, started_environment

    line = [*own_python(isolated=True), "-m", "ioprof", *sys.argv[1:]]
    os.execve(line[0], line, started_environment())  # noqa: S606 - in place of this process


def _is_here() -> bool:
    """Whether ioprof was imported from the working directory, by `python -m ioprof` in a
    checkout.
    """
    try:
        return os.getcwd() == _PACKAGES and sys.path[:1] == [_PACKAGES]
    except OSError:  # it was removed
        return False


if __name__ == "__main__":
    raise SystemExit(program())
