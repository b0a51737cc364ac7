"""Spools in which somebody put a pipe, a device or a folder in place of a file: it is not read, and
that is said; nothing waits."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
from captures import chunk, header_bytes, record

from ioprof.cli import main
from ioprof.format.schema import KINDS
from ioprof.ingest import read_spool
from ioprof.ingest.kept_state import KeptState
from ioprof.ingest.kineto.reader import read_windows
from ioprof.ingest.spool_copy import copy_spool
from ioprof.recording.keeping import repeat_drops
from ioprof.watching.spool import LiveSpool
from ioprof.watching.target import targets

REPORTED: Final = (
    "b-9-0.ring",
    "counters-a-7.jsonl",
    "facts-a-7.jsonl",
    "clocks-a-0.jsonl",
    "stacks-a.bin",
    "faults-a.perf",
    "a-7.nccl",
    "kineto-a-7-0.json",
)
"""Files whose absence is told."""
OTHERS: Final = (
    "kineto-a-7-0.meta.json",
    "gpu-a-7.json",
    "kept.json",
    "counters-a-7.jsonl.kept",
    "job.json",
)
HANG_S: Final = 20


def fill(path: Path, kind: str) -> None:
    """Make what is no regular file."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(kind)


@contextmanager
def ends() -> Iterator[None]:
    """Fail where the block waits for a writer, or reads without end."""

    def stop(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANG_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(params=["pipe", "folder", "/dev/zero", "/dev/ptmx"])
def spool(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A capture file with one step, and beside it nothing that is a file."""
    folder = tmp_path / "spool"
    folder.mkdir()
    step = record(kind=KINDS.index("step") + 1, start_ns=1_000, end_ns=2_000, step=0)
    (folder / "a-7-0.ring").write_bytes(
        header_bytes(chunks=1, anchor_wall_ns=1 << 60, rank=0) + chunk(step)
    )
    for name in (*REPORTED, *OTHERS):
        fill(folder / name, request.param)
    return folder


def test_a_spool_is_read_without_what_is_no_file(spool: Path) -> None:
    """The spans that are there, and what could not be read."""
    with ends():
        trace = read_spool(spool)
        read_windows(spool)

    assert [1_000] == (trace.spans["end_ns"] - trace.spans["start_ns"]).to_list()
    told = {damage.file for damage in trace.run.capture.damaged}
    assert set(REPORTED) - {"counters-a-7.jsonl", "kineto-a-7-0.json"} <= told
    assert trace.run.capture.sampled.damaged == 1


def test_a_spool_is_followed_and_copied_without_what_is_no_file(
    spool: Path, tmp_path: Path
) -> None:
    """By watch and snapshot; nothing but files is copied."""
    (tmp_path / "copy").mkdir()
    with ends():
        live = LiveSpool(spool)
        assert [1] == [len(news.records) for news in live.look()]
        live.close()
        assert KeptState.load(spool) is None
        copy_spool(spool, tmp_path / "copy", "a")
        with suppress(OSError):
            repeat_drops(spool)

    assert {"a-7-0.ring", "kept.json"} == {path.name for path in (tmp_path / "copy").iterdir()}


@pytest.mark.parametrize(
    "command",
    [("inspect",), ("watch", "--once"), ("snapshot", "--out", "OUT"), ("gather", "--out", "OUT")],
)
def test_a_command_on_such_a_spool_ends(
    spool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str]
) -> None:
    """With an answer, or an error of one line."""
    with ends():
        code = main(
            [
                command[0],
                str(spool),
                *(str(tmp_path / "out") if word == "OUT" else word for word in command[1:]),
            ]
        )

    printed = capsys.readouterr()
    assert code in (0, 1, 2)
    assert "Traceback" not in printed.err
    assert code == 0 or (printed.out, 1) == ("", len(printed.err.splitlines()))
    with suppress(Exception):
        targets(str(spool))
