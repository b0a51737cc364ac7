"""Reading whole files: the bytes are the file's, and what is no file is refused by name instead of waited for."""

import errno
import os
import socket
from pathlib import Path

import pytest
from captures import recorded, trace_of
from hypothesis import given
from hypothesis import strategies as st

from ioprof.record.reads import LARGEST_FILE, read_file


@given(st.binary(max_size=20_000))
def test_a_read_returns_the_files_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """Whatever the file holds, and though it is opened without waiting."""
    path = tmp_path_factory.mktemp("file") / "a.JPEG"
    path.write_bytes(data)
    assert data == read_file(str(path))


def test_what_was_read_is_recorded(tmp_path: Path) -> None:
    """One open, and reads whose bytes add up to the file's; all of the same file and batch."""
    path = tmp_path / "a.JPEG"
    path.write_bytes(bytes(300_000))
    with recorded(tmp_path, native=False):
        read_file(str(path), batch=4)
    spans = trace_of(tmp_path).spans
    assert ["open", "read"] == sorted(spans["kind"].unique().to_list())
    assert (1, 300_000) == (len(spans.filter(kind="open")), spans["bytes"].sum())
    assert ([0], [4]) == (spans["file"].unique().to_list(), spans["batch"].unique().to_list())


def fifo(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.timeout(30)  # a FIFO without a writer would be waited for, for ever
@pytest.mark.parametrize("make", [fifo, unix_socket, device, folder])
def test_what_is_no_file_is_refused(make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FIFO, a socket, a device, a folder: an error at once, which names the path and says what is wrong with it."""
    monkeypatch.chdir(tmp_path)  # a socket's path may not be long
    make(Path("a.JPEG"))
    with pytest.raises(OSError, match="not a regular file") as refused:
        read_file("a.JPEG")
    assert "a.JPEG" == refused.value.filename


def test_a_file_too_large_for_an_image_is_refused(tmp_path: Path) -> None:
    """Before any memory is taken for it; the error names the file and its size."""
    path = tmp_path / "a.JPEG"
    with open(path, "wb") as file:
        file.truncate(LARGEST_FILE + 1)
    with pytest.raises(OSError, match="1,073,741,825 bytes") as refused:
        read_file(str(path))
    assert (errno.EFBIG, str(path)) == (refused.value.errno, refused.value.filename)
