"""The recording of a training loop by a callback: from its begin to its end."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from ioprof import api
from ioprof.errors import CaptureError

if TYPE_CHECKING:
    from ioprof.report.explore import Run


class TrainingBlock:
    """Records from `begin` to `end`, in the process that trains; in one that `ioprof record`
    records already it does nothing.
    """

    def __init__(self, out: Path | str, force: bool) -> None:
        self._out, self._force = out, force
        self._block: AbstractContextManager[None] | None = None

    def begin(self) -> None:
        """Start to record. Raises `CommandError` where `out` cannot be made."""
        block = api.profile(self._out, self._force)
        try:
            block.__enter__()
        except CaptureError:
            return
        self._block = block

    def end(self, error: BaseException | None = None) -> "Run | None":
        """Make the run folder, and return the run. None: nothing was recorded. `error`: what the
        training raised.
        """
        block, self._block = self._block, None
        if block is None:
            return None
        if error is None:
            block.__exit__(None, None, None)
        else:
            block.__exit__(type(error), error, error.__traceback__)
        return api.load(self._out)
