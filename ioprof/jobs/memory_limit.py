"""The memory limit of the built-in job, its page cache included."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ioprof.format.run_record import MemoryLimitRecord
from ioprof.storage.limits import Group, Slice, memory_limit


class MemoryLimit:
    """The memory limit of a job; `asked_bytes` is None where there is none."""

    def __init__(self, asked_bytes: int | None, limited: Group | Slice | None) -> None:
        self.asked_bytes = asked_bytes
        self._limited = limited

    def environment(self, spool: Path) -> dict[str, str]:
        """Variables that make ioprof start the ranks under the limit: PYTHON_EXEC names a script
        that runs them.
        """
        return (
            {}
            if self._limited is None
            else {"PYTHON_EXEC": str(self._script(spool, self._limited))}
        )

    def command(self, spool: Path, *arguments: str) -> list[str]:
        """The command that runs Python with these arguments under the limit."""
        return [
            sys.executable if self._limited is None else str(self._script(spool, self._limited)),
            *arguments,
        ]

    def record(self) -> MemoryLimitRecord | None:
        """For run.json; to be called while the limit is still there."""
        if self._limited is None:
            return None
        wrapping = self._limited.wrapping
        counted = self._limited.facts()
        return MemoryLimitRecord.of(
            {"asked_bytes": self.asked_bytes, "by": wrapping.by, "name": wrapping.name, **counted}
        )

    def _script(self, spool: Path, limited: Group | Slice) -> Path:
        path = spool / "limited"
        if not path.exists():
            path.write_text(limited.wrapping.script(sys.executable))
            path.chmod(0o755)
        return path


@contextmanager
def limit_memory(limit_bytes: int | None) -> Iterator[MemoryLimit]:
    """A limit of so many bytes while the block runs, or none; raises `CommandError` where this
    machine permits no limit.
    """
    if limit_bytes is None:
        yield MemoryLimit(None, None)
        return
    with memory_limit(limit_bytes) as limited:
        yield MemoryLimit(limit_bytes, limited)
