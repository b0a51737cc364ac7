"""Writing a file so that it is there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced_file(path: Path, *, synced: bool = False) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; what the block writes there becomes `path` by rename when the block ends.

    A file that is there is replaced. If the block raises, `path` stays as it was and the temporary file is removed; a process
    that is killed leaves it, named `.NAME.PID.tmp`. `synced` waits until data and name are on stable storage, so that the file
    is whole after a power cut, too.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        if synced:
            sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if synced:
        sync(path.parent)


def write_atomically(path: Path, content: str | bytes, *, synced: bool = False) -> None:
    """Write `content` (text as UTF-8) to `path`, whole or not at all; see `replaced_file`."""
    with replaced_file(path, synced=synced) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def sync(path: Path) -> None:
    """Wait until a file's data, or the names in a folder, are on stable storage (man 2 fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
