"""What a job keeps beside its destination until it is done, so that the same job, started again, goes on from there.

.NAME.partial/job.json    what the job is: another one does not go on from here
.NAME.partial/journal     what it has done (`journal.py`)
.NAME.partial/boot        the boot of the machine under which it was written
.NAME.partial/lock        held by the process that is at work
.NAME.partial/dataset/    becomes the destination, by rename
.NAME.partial/NAME.part-1-of-4/   and so on: parts that have been merged, and are about to go
"""

import contextlib
import errno
import fcntl
import json
import os
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ioprof.converters.destination import end_like_interrupt, partial_name
from ioprof.converters.journal import told
from ioprof.dataset import write_json_atomically
from ioprof.errors import CommandError

_NO_LOCKS: Final = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)  # Lustre without -o flock, some FUSE
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_MAX_JOB_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class HalfMade:
    """The folder of a job that may not have come to its end."""

    folder: Path

    @classmethod
    def beside(cls, destination: Path) -> "HalfMade":
        """Where the job for `destination` keeps what it has done; it need not exist."""
        return cls(destination.with_name(partial_name(destination)))

    @property
    def data(self) -> Path:
        """What becomes the destination."""
        return self.folder / "dataset"

    @property
    def journal(self) -> Path:
        """What is done, image by image."""
        return self.folder / "journal"

    @property
    def is_worth_keeping(self) -> bool:
        """Whether anything is done."""
        try:
            return self.journal.stat().st_size > 0
        except OSError:
            return False

    @property
    def is_in_place(self) -> bool:
        """Whether the data has been renamed already: the job was killed while it removed what it no longer needed."""
        return (self.folder / "job.json").exists() and self.is_worth_keeping and not self.data.exists()

    @property
    def images_done(self) -> int:
        """How many images the journal tells of."""
        return told(self.journal).images

    def same_boot(self) -> bool:
        """Whether no crash of a machine can have lost what the kernel had not yet written."""
        try:
            return (self.folder / "boot").read_text() == _BOOT_ID.read_text()
        except OSError:
            return False

    def note_boot(self) -> None:
        """From now on what is written counts on this boot of this machine."""
        with contextlib.suppress(FileNotFoundError):  # no Linux
            (self.folder / "boot").write_text(_BOOT_ID.read_text())

    def job(self) -> dict[str, Any] | None:
        """What the job was that left this; null if that cannot be told."""
        path = self.folder / "job.json"
        try:
            keys = json.loads(path.read_bytes()) if path.stat().st_size < _MAX_JOB_BYTES else None
        except (OSError, ValueError, RecursionError):
            return None
        return keys if isinstance(keys, dict) else None

    def clear(self) -> None:
        """Forget what was done. The journal goes first: what it does not tell of does not count."""
        self.journal.unlink(missing_ok=True)
        if self.data.exists():
            shutil.rmtree(self.data)

    def sweep(self) -> None:
        """Remove the folder if its job was killed when it had removed nearly all of it."""
        if self.folder.exists() and not self.is_worth_keeping and not self.data.exists():
            with contextlib.suppress(CommandError, OSError), _locked(self.folder):  # else a job has just begun
                shutil.rmtree(self.folder, ignore_errors=True)

    def prepare(self, job: dict[str, Any], force: bool) -> None:
        """Go on from what the same job left, or begin anew; raises `CommandError` for what another job left, unless `force`."""
        before = self.job()
        if before != job:
            if before is not None and self.is_worth_keeping and not force:
                raise self._other(before, job)
            (self.folder / "job.json").unlink(missing_ok=True)
            self.clear()
            write_json_atomically(self.folder / "job.json", job)
        elif not self.is_worth_keeping:
            self.clear()

    def _other(self, before: dict[str, Any], job: dict[str, Any]) -> CommandError:
        keys = sorted(key for key in before.keys() | job.keys() if before.get(key) != job.get(key))
        return CommandError(
            f"{self.folder}: what another conversion to the same place has done so far (it differs in {', '.join(keys)}); "
            f"go on with that one, or drop it with --force or: rm -r {shlex.quote(str(self.folder))}"
        )


@contextlib.contextmanager
def half_made(destination: Path, job: dict[str, Any], force: bool) -> Iterator[HalfMade]:
    """The job's own folder, locked; removed when the block ends well, and when it does not and nothing is done yet.

    Raises `CommandError` for a full disk or memory, whichever part of the job met it; signals that ask to end are interrupts.
    """
    work = HalfMade.beside(destination)
    missing = [parent for parent in destination.parents if not parent.exists()]
    with end_like_interrupt():
        try:
            destination.parent.mkdir(parents=True, exist_ok=True)
            with _locked(work.folder):
                work.prepare(job, force)
                try:
                    yield work
                except BaseException:
                    if not work.is_worth_keeping:
                        _remove(work, missing)
                    raise
                _remove(work, [])
        except OSError as error:
            what = f"{destination}: cannot be written ({error.strerror or error})"
            raise CommandError(f"{what}; {_left(work)}", exit_code=1) from error
        except MemoryError as error:
            raise CommandError(f"out of memory; use fewer --workers; {_left(work)}", exit_code=1) from error
        except CommandError as error:
            if error.exit_code == 1 and work.is_worth_keeping:
                raise CommandError(f"{error}; {_left(work)}", exit_code=1) from error
            raise


def _left(work: HalfMade) -> str:
    return "what is done is kept: the same command goes on from there" if work.is_worth_keeping else "nothing was left behind"


def _remove(work: HalfMade, missing: list[Path]) -> None:
    shutil.rmtree(work.data, ignore_errors=True)  # first: without it, the rest says that the data is in its place
    for folder in [path for path in work.folder.glob("*/") if path.is_dir()]:  # parts that were merged
        shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(work.folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # not empty: someone else uses it by now
        for parent in missing:
            parent.rmdir()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = _lock(folder)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(folder: Path) -> int:
    while True:
        folder.mkdir(exist_ok=True)
        path = folder / "lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # removed between the two
            continue
        try:
            _take(descriptor, path)
            if os.path.lexists(path) and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # of a job that has ended meanwhile, and removed its folder


def _take(descriptor: int, path: Path) -> None:
    owner = os.pread(descriptor, 400, 0).decode(errors="replace")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CommandError(f"{path.parent}: another process works on it ({_shown(owner)})", exit_code=1) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _take_without_locks(owner, path)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.uname().nodename} {os.getpid()}".encode(), 0)


def _take_without_locks(owner: str, path: Path) -> None:
    # The file system knows no locks: the owner's name has to do.
    host, _, process = owner.rpartition(" ")
    gone = not owner or (host == os.uname().nodename and process.isdigit() and not Path(f"/proc/{process}").exists())
    if not gone and owner != f"{os.uname().nodename} {os.getpid()}":
        todo = f"if that process has ended: rm {shlex.quote(str(path))}"
        raise CommandError(f"{path.parent}: {_shown(owner)} may be at work on it; {todo}", exit_code=1)


def _shown(owner: str) -> str:
    return owner if owner.isprintable() and owner else "unknown"
