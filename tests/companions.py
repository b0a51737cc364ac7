"""Helper programs that run during a test, such as a file server, and execute requests, which are
lines of JSON on their stdin.

A companion prints one line when it is ready, and one line per request. When its stdin is closed, it
cleans up and exits, also if the test is killed.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, Final

LONGEST_S: Final = 60
"""Maximum seconds for a companion to clean up."""


class Companion:
    """A running companion."""

    def __init__(self, process: "subprocess.Popen[str]", ready: dict[str, Any]) -> None:
        self._process = process
        self.pid = process.pid
        self.ready = ready

    def ask(self, **question: Any) -> dict[str, Any]:
        """Its reply; raises an error if it has died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return dict(json.loads(self._process.stdout.readline()))


@contextmanager
def companion(*command: object) -> Iterator[Companion]:
    """A Python program with its arguments, until the block ends.

    Skips the test with the reason of the companion if something is missing, and fails it if the
    companion fails.
    """
    line = [
        sys.executable,
        *(os.fsdecode(word) if isinstance(word, bytes) else str(word) for word in command),
    ]
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        # A session of its own: Ctrl-C reaches only the test, which then ends the companion.
        process = subprocess.Popen(
            line,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,
        )
        try:
            yield Companion(process, _first_answer(process, said))
        finally:
            _end(process)
        assert 0 == process.returncode, _end_of(said)


def answer_until_told_to_end(
    answer: Callable[[dict[str, Any]], dict[str, Any]], ready: dict[str, Any]
) -> None:
    """In the companion: report that it is ready, then answer requests until stdin is closed."""
    print(json.dumps(ready), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def _first_answer(process: "subprocess.Popen[str]", said: IO[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.wait(LONGEST_S)
        raise RuntimeError(f"{process.args} ended before it was ready: {_end_of(said)}")  # type: ignore[str-bytes-safe]
    ready = dict(json.loads(line))
    if "missing" in ready:
        import pytest  # imported late: the companions import this module too

        pytest.skip(str(ready["missing"]))
    return ready


def _end_of(said: IO[str]) -> str:
    said.seek(0)
    return said.read()[-2000:]


def _end(process: "subprocess.Popen[str]") -> None:
    try:
        process.communicate(timeout=LONGEST_S)  # closes its stdin
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
