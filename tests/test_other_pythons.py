"""Jobs under other versions of Python than ioprof's own: newer ones are recorded by the same
extension, older ones are named."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from interpreters import interpreters
from preload import needs_library

import ioprof
from ioprof.format.schema import RENAME, WRITE
from ioprof.report.run import Run

pytestmark = pytest.mark.system(every=3)

PROGRAM = """
import os, sys, time
try:
    import ioprof
    with ioprof.span("mine"):
        time.sleep(0.001)
except ImportError:
    pass
with open(sys.argv[1]) as file:
    file.read()
"""


def others(
    is_asked_for: Callable[[tuple[int, int]], bool], which: str
) -> dict[tuple[int, int], Path]:
    """The other interpreters of such a version; skips where there is none."""
    found = {
        version: python
        for version, python in interpreters().items()
        if version != sys.version_info[:2]
    }
    found = {version: python for version, python in found.items() if is_asked_for(version)}
    if not found:
        pytest.skip(f"no {which}")
    return found


def recorded(python: Path, folder: Path) -> Run:
    """A small program under another Python."""
    (folder / "program.py").write_text(PROGRAM)
    (folder / "data.txt").write_text("data")
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "ioprof",
            "record",
            "--quiet",
            "--out",
            "run",
            "--",
            python,
            "program.py",
            "data.txt",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == ended.returncode, ended.stderr
    return Run.load(folder / "run")


@pytest.mark.system(every=4)
@needs_library
def test_newer_versions_are_recorded_by_the_same_extension(tmp_path: Path) -> None:
    """Spans and reads; `_native` is one library for all versions."""
    native = next(Path(ioprof.__file__).parent.glob("_native.*.so"))
    assert "_native.abi3.so" == native.name
    for version, python in others(
        lambda version: version >= (3, 11), "other Python from 3.11 on"
    ).items():
        folder = tmp_path / python.name
        folder.mkdir()
        run = recorded(python, folder)
        spans = run.trace.spans
        own = (pl.col("kind") == "user") & ~pl.col("name").is_in([WRITE, RENAME])
        assert ["mine"] == spans.filter(own)["name"].to_list(), version
        assert str(folder / "data.txt") in run.trace.files["path"].to_list(), version
        assert () == run.trace.run.capture.unobserved, version


@needs_library
def test_older_versions_are_named(tmp_path: Path) -> None:
    """Their reads are recorded, and the report says that nothing else is, and why: the oldest and
    the newest of them."""
    old = others(lambda version: version < (3, 11), "Python before 3.11")
    for version in {min(old), max(old)}:
        folder = tmp_path / str(version[1])
        folder.mkdir()
        run = recorded(old[version], folder)
        assert str(folder / "data.txt") in run.trace.files["path"].to_list()
        sentence = f"Python 3.{version[1]} (RuntimeError: ioprof observes Python 3.11 and newer)"
        assert any(sentence in said for said in run.summary.capture.not_seen), version
        assert f"Python 3.{version[1]} was not observed" in run.summary.verdict.text
