"""The spool of a recording: making it, the proof that a folder is one, and removing it.

Only files that ioprof writes are removed, known by their names, and no link is followed; what else
lies in a spool stays. A folder that merely has a `job.json` is the user's.
"""

import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

JOB: Final = "job.json"
"""In the spool: what is known of the run, who records it, and its `Origin`."""
PREFIX: Final = "ioprof-"
_NAME: Final = re.compile(rf"{PREFIX}[a-z0-9_]{{8}}")
"""As tempfile.mkdtemp makes it."""
_TOKEN_BYTES: Final = 32
_OF_PROCESS: Final = r".+-\d+"  # host and process
_FILES: Final = (
    r"job\.json",  # recording/pending_run.py
    rf"{_OF_PROCESS}-\d+\.(ring|nccl)",  # native/ring/ring_file.c, native/nccl/log.c
    rf"{_OF_PROCESS}-\d+\.perf(\.kept)?",  # instrument/faults.py; .kept: ingest/appended_files.py
    # instrument/hooks/state.py and site/sitecustomize.py, instrument/clock_exchange.py
    rf"(facts|clocks)-{_OF_PROCESS}\.jsonl",
    # instrument/samplers/file.py, instrument/hooks/garbage.py
    rf"counters-{_OF_PROCESS}\.jsonl(\.kept)?",
    rf"stacks-{_OF_PROCESS}\.bin(\.kept)?",  # stacks/sampler.py
    # instrument/gpu.py
    rf"(kineto-{_OF_PROCESS}-\d+(\.meta)?|gpu-{_OF_PROCESS})\.json(\.new|\.tmp)?",
    rf"batches-{_OF_PROCESS}",  # instrument/hooks/batch_numbering.py
    r"rank-taken-\d+",  # instrument/identity.py
    r"kept\.(json|lock)",  # ingest/kept_state.py
    r"config\.json|progress",  # train/config.py, train/loop.py
    # train/{job,config,curve,rendezvous}.py
    r"(rank|loading)-\d+\.json|(network|learning|rendezvous)\.json",
    r"limited",  # jobs/memory_limit.py
    r"readahead",  # native/capture/hooks_mmap.c
)
"""All files that ioprof writes into spools, and the modules that name them."""
_WRITTEN: Final = re.compile("|".join(rf"({each})" for each in _FILES))
_HALF_WRITTEN: Final = re.compile(r"\.(.+)\.\d+\.tmp")
"""Temporary files of `ioprof.files.replaced_file`."""
_JOB_FOLDER: Final = re.compile(r"ioprof-job-[a-z0-9_]{8}")
"""The temporary folder of a built-in job (jobs/launch.py): all in it is the job's, and
temporary."""


@dataclass(frozen=True)
class Origin:
    """What a spool says of itself in its `JOB`, by which it is known again. The marker of its run
    folder has the same token.
    """

    token: str
    """Random, so that no other folder has it, unless as a copy."""
    uid: int
    """Of the user who records."""
    inode: int
    """Of the spool: a copy, or what was unpacked from an archive, has another."""

    @classmethod
    def of(cls, keys: object) -> Self | None:
        """As it was read; None: there is none, as in a spool that an earlier version made, or it is
        damaged.
        """
        if not isinstance(keys, Mapping):
            return None
        token, uid, inode = keys.get("token"), keys.get("uid"), keys.get("inode")
        if (
            not isinstance(token, str)
            or not is_token(token)
            or not isinstance(uid, int)
            or not isinstance(inode, int)
        ):
            return None
        return cls(token, uid, inode)

    def to_dict(self) -> dict[str, Any]:
        """As it is written."""
        return asdict(self)


def is_token(value: object) -> bool:
    """Whether that may be the token of a recording."""
    return (
        isinstance(value, str)
        and re.fullmatch(rf"[0-9a-f]{{{2 * _TOKEN_BYTES}}}", value) is not None
    )


def make_spool() -> tuple[Path, Origin]:
    """A new one in the folder for temporary files."""
    spool = Path(tempfile.mkdtemp(prefix=PREFIX))
    return spool, Origin(secrets.token_hex(_TOKEN_BYTES), os.geteuid(), os.lstat(spool).st_ino)


def misplaced(spool: Path) -> str | None:
    """What shows that ioprof did not make this folder for a recording of this user, after "which";
    None: nothing does.
    """
    try:
        status, job = os.lstat(spool), os.lstat(spool / JOB)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if not stat.S_ISDIR(status.st_mode):
        return "is a link or a file"
    if not _NAME.fullmatch(spool.resolve().name):
        return (
            f"is not named as ioprof names the folders of its capture files ({PREFIX} and 8"
            " characters)"
        )
    if not stat.S_ISREG(job.st_mode):
        return f"has a {JOB} that is no regular file"
    if {status.st_uid, job.st_uid} != {os.geteuid()}:
        return "belongs to another user"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be written to by other users"
    return None


def unproven(spool: Path, origin: Origin | None) -> str | None:
    """Why it is not certain that ioprof made this folder, after "which"; None: it is. `origin` is
    what it says of itself.
    """
    if (reason := misplaced(spool)) is not None:
        return reason
    if origin is None:
        return "an earlier version of ioprof made, or another program"
    if origin.uid != os.geteuid():
        return "another user recorded"
    return None if origin.inode == os.lstat(spool).st_ino else "is a copy"


def remove_spool(spool: Path, origin: Origin) -> list[str]:
    """Remove what ioprof wrote into a spool, and the folder if nothing else is in it; returns the
    names of what stays.

    To be called for a spool of which `unproven` says nothing, or that this process made.
    """
    try:
        folder = os.open(spool, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # it is gone, or something else has its name
        return []
    try:
        if os.fstat(folder).st_ino != origin.inode:
            return []
        # the proof goes last
        names = sorted(os.listdir(folder), key=lambda name: (name == JOB, name))
        left = [name for name in names if not _remove(name, folder)]
    finally:
        os.close(folder)
    if not left:
        with suppress(OSError):  # a process of the job that goes on writes to it
            spool.rmdir()
    return left


def left_text(spool: Path, names: list[str]) -> str:
    """The line for what `remove_spool` did not remove."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"not removed, since ioprof did not write it: {spool / names[0]}{more}"


def _remove(name: str, folder: int) -> bool:
    """Remove an entry of a spool that is open; False: ioprof did not write it."""
    with suppress(OSError):
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode) and _JOB_FOLDER.fullmatch(name):
            shutil.rmtree(name, ignore_errors=True, dir_fd=folder)  # which follows no link
        elif stat.S_ISREG(mode) and _is_written(name):
            os.unlink(name, dir_fd=folder)
        else:
            return False
    return True


def _is_written(name: str) -> bool:
    half_written = _HALF_WRITTEN.fullmatch(name)
    return _WRITTEN.fullmatch(half_written[1] if half_written else name) is not None
