"""The errors that ioprof raises on purpose.

    IoprofError                what happened, why it matters, what to type
    ├── CommandError           bad usage or bad input; the command line exits with `exit_code`
    ├── DatasetError           a folder is not a dataset, or a record of it cannot be used
    ├── RunError               a folder is not a run, or a file of it is damaged
    ├── LoaderError            a loader lost a worker process
    └── CaptureError           recording could not be started

Every message is one line that tells the user what to do. Only `ioprof.cli` converts them into
output and exit codes.
"""

from typing import Final

NOT_EXECUTABLE: Final = 126
"""The exit code of shells for a program that may not be executed."""
NOT_FOUND: Final = 127
"""That for one that is not there."""


class IoprofError(Exception):
    """An error with a message for the user. `exit_code` is the exit code of the command line."""

    exit_code = 1


class CommandError(IoprofError):
    """A command cannot do what was requested; `exit_code` is 2 unless the work had already
    started.
    """

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class DatasetError(IoprofError):
    """A folder is not a dataset, or a record in it cannot be read; the message names the file or
    the key.
    """

    exit_code = 2


class RunError(IoprofError):
    """A folder is not a run, or one of its files is damaged."""

    exit_code = 2


class LoaderError(IoprofError):
    """A loader lost a worker process; the message says which, and how it ended."""


class CaptureError(IoprofError):
    """Recording could not be started, or a capture file cannot be parsed."""
