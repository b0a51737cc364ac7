"""The incomplete output of a job, kept next to its destination until it is done, so that the same
job can resume.

.NAME.partial/job.json    identity of the job: only the same job resumes from here
.NAME.partial/journal     the records that are done (`journal.py`)
.NAME.partial/boot        boot id of the machine during which it was written
.NAME.partial/lock        locked by the running process
.NAME.partial/dataset/    becomes the destination, by rename
.NAME.partial/NAME.part-1-of-4/   ...: parts that have been merged, and are about to be removed
"""

import contextlib
import errno
import fcntl
import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ioprof.converters.job.destination import partial_name, termination_as_interrupt
from ioprof.converters.job.journal import journal_progress
from ioprof.errors import CommandError
from ioprof.files import make_folders, read_json_object
from ioprof.format.dataset import write_json_atomically

# Lustre without -o flock, some FUSE
_NO_LOCKS: Final = (
    errno.ENOSYS,
    errno.ENOLCK,
    errno.EOPNOTSUPP,
    errno.EINVAL,
)
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class PartialOutput:
    """The folder of a job that may not be finished."""

    folder: Path

    @classmethod
    def for_destination(cls, destination: Path) -> "PartialOutput":
        """The partial output of the job for `destination`; the folder need not exist."""
        return cls(destination.with_name(partial_name(destination)))

    @property
    def data(self) -> Path:
        """The folder that is renamed to the destination."""
        return self.folder / "dataset"

    @property
    def journal(self) -> Path:
        """The file that lists the images that are done."""
        return self.folder / "journal"

    @property
    def has_progress(self) -> bool:
        """Whether the journal lists any image."""
        try:
            return self.journal.stat().st_size > 0
        except OSError:
            return False

    @property
    def is_renamed(self) -> bool:
        """Whether the data has already been renamed: the job was killed while it removed this
        folder.
        """
        return (self.folder / "job.json").exists() and self.has_progress and not self.data.exists()

    @property
    def images_done(self) -> int:
        """Number of images in the journal."""
        return journal_progress(self.journal).images

    def is_same_boot(self) -> bool:
        """Whether the machine has not been restarted since: then the kernel cannot have lost
        written data.
        """
        try:
            return (self.folder / "boot").read_bytes() == _BOOT_ID.read_bytes()
        except OSError:
            return False

    def record_boot(self) -> None:
        """Store the boot id of this machine, for `is_same_boot`."""
        with contextlib.suppress(FileNotFoundError):  # no Linux
            (self.folder / "boot").write_text(_BOOT_ID.read_text())

    def read_job(self) -> dict[str, Any] | None:
        """The identity of the job that wrote this folder; None if it cannot be read."""
        return read_json_object(self.folder / "job.json")

    def clear(self) -> None:
        """Remove journal and data. The journal goes first: data that is not in the journal is
        ignored.
        """
        self.journal.unlink(missing_ok=True)
        if self.data.exists():
            shutil.rmtree(self.data)

    def remove_if_empty(self) -> None:
        """Remove the folder if it holds neither journal nor data: its job was killed while it
        removed the folder.
        """
        if self.folder.exists() and not self.has_progress and not self.data.exists():
            # fails where a job has just started
            with (
                contextlib.suppress(CommandError, OSError),
                _lock(self.folder),
            ):
                shutil.rmtree(self.folder, ignore_errors=True)

    def remove(self, parents: Sequence[Path] = ()) -> None:
        """Remove the whole folder, and those of `parents` that are empty then."""
        # first: a journal without data means that the data has been renamed
        shutil.rmtree(self.data, ignore_errors=True)
        # parts that were merged
        for folder in [path for path in self.folder.glob("*/") if path.is_dir()]:
            shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: another process uses it now
            for parent in parents:
                parent.rmdir()

    def prepare(self, job: dict[str, Any], force: bool) -> None:
        """Resume the same job, or start from nothing; raises `CommandError` for the output of
        another job, unless `force`.
        """
        before = self.read_job()
        if before != job:
            if before is not None and self.has_progress and not force:
                keys = sorted(
                    key for key in before.keys() | job.keys() if before.get(key) != job.get(key)
                )
                raise CommandError(
                    f"{self.folder}: output of another, unfinished conversion to the same place (it"
                    f" differs in {', '.join(keys)}); finish that one, or remove its output with"
                    f" --force or: rm -r {shlex.quote(str(self.folder))}"
                )
            (self.folder / "job.json").unlink(missing_ok=True)
            self.clear()
            write_json_atomically(self.folder / "job.json", job)
        elif not self.has_progress:
            self.clear()


@contextlib.contextmanager
def open_partial_output(
    destination: Path, job: dict[str, Any], force: bool
) -> Iterator[PartialOutput]:
    """The job's folder, locked; removed when the block succeeds, and when it raises before anything
    is done.

    Raises `CommandError` for a full disk or exhausted memory anywhere in the block; SIGTERM and
    SIGHUP raise KeyboardInterrupt.
    """
    work = PartialOutput.for_destination(destination)
    missing = [parent for parent in destination.parents if not parent.exists()]
    with termination_as_interrupt():
        try:
            make_folders(destination.parent)
            with _lock(work.folder):
                work.prepare(job, force)
                try:
                    yield work
                except BaseException:
                    if not work.has_progress:
                        work.remove(missing)
                    raise
                work.remove()
        except OSError as error:
            what = f"{destination}: cannot be written ({error.strerror or error})"
            raise CommandError(f"{what}; {_resume_hint(work)}", exit_code=1) from error
        except MemoryError as error:
            raise CommandError(
                f"out of memory; use fewer --workers; {_resume_hint(work)}", exit_code=1
            ) from error
        except CommandError as error:
            if error.exit_code == 1 and work.has_progress:
                raise CommandError(f"{error}; {_resume_hint(work)}", exit_code=1) from error
            raise


def _resume_hint(work: PartialOutput) -> str:
    return (
        "finished work is kept: the same command resumes from there"
        if work.has_progress
        else "nothing was left behind"
    )


# ----------------------------------------------------------------------------------------- the lock


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    descriptor = _open_lock(folder)
    try:
        yield
    finally:
        os.close(descriptor)


def _open_lock(folder: Path) -> int:
    while True:
        folder.mkdir(exist_ok=True)
        path = folder / "lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # the folder was removed after mkdir
            continue
        try:
            _acquire(descriptor, path)
            if os.path.lexists(path) and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its job has finished meanwhile, and removed the folder


def _acquire(descriptor: int, path: Path) -> None:
    owner = os.pread(descriptor, 400, 0).decode(errors="replace")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CommandError(
            f"{path.parent}: another process works on it ({_printable(owner)})", exit_code=1
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _check_owner(owner, path)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.uname().nodename} {os.getpid()}".encode(), 0)


def _check_owner(owner: str, path: Path) -> None:
    # For a file system without locks: the host and process written in the lock file decide.
    host, _, process = owner.rpartition(" ")
    gone = not owner or (
        host == os.uname().nodename and process.isdigit() and not Path(f"/proc/{process}").exists()
    )
    if not gone and owner != f"{os.uname().nodename} {os.getpid()}":
        todo = f"if that process has ended: rm {shlex.quote(str(path))}"
        raise CommandError(
            f"{path.parent}: {_printable(owner)} may be working on it; {todo}", exit_code=1
        )


def _printable(owner: str) -> str:
    return owner if owner.isprintable() and owner else "unknown"
