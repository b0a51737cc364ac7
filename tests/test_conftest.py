"""The fixture that runs with every test detects leftovers."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from repository import ROOT

LEAVERS = """
import os, pytest, subprocess, sys, threading, time, types

pytestmark = pytest.mark.job

def recorder():
    module = types.ModuleType("ioprof.instrument.recorder")
    module.on, module.is_recording = True, lambda: module.on
    module.stop = lambda: setattr(module, "on", False)
    sys.modules[module.__name__] = module

def test_thread(): threading.Thread(target=time.sleep, args=(60,), daemon=True, name="sleeper").start()
def test_child(): subprocess.Popen(["sleep", "60"])
def test_variable(): os.environ["LEFT_BEHIND"] = "1"
def test_folder(): os.chdir("/")
def test_recording(): recorder()
def test_tidy(monkeypatch, tmp_path): monkeypatch.setenv("A", "1"); monkeypatch.chdir(tmp_path); subprocess.run(["true"])
"""  # noqa: E501


@pytest.mark.job(every=4)
def test_what_a_test_leaves_behind_fails_it_and_is_put_right(tmp_path: Path) -> None:
    """Each kind of leftover is reported exactly once: the next test starts clean."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "conftest.py").write_text(
        (tmp_path / "conftest.py")
        .read_text()
        .replace("GRACE_S: Final = 5.0", "GRACE_S: Final = 0.1")
    )
    (tmp_path / "test_leavers.py").write_text(LEAVERS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = job: as in the project's own\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-q",
        "--rootdir",
        tmp_path,
        tmp_path,
    ]
    # otherwise pytest would truncate its summary lines
    environment = {
        **os.environ,
        "COLUMNS": "200",
    }
    out = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    ).stdout
    found = re.findall(
        r"^ERROR test_leavers\.py::(\w+) - AssertionError: the test left behind: (\w+ \w+)",
        out,
        flags=re.MULTILINE,
    )
    expected = {
        "test_thread": "thread sleeper",
        "test_child": "child process",
        "test_variable": "environment variable",
        "test_folder": "working directory",
        "test_recording": "recording on",
    }
    assert expected == dict(found), out
    assert re.search(r"\b6 passed, 5 errors\b", out), out


TIERS = """
import pytest, subprocess

@pytest.fixture(scope="module")
def shared(): return subprocess.run(["true"])

@pytest.fixture(scope="module")
def mounted(): return subprocess.run(["unshare", "--version"], stdout=subprocess.DEVNULL)

def test_unit(): pass
def test_starts(): subprocess.run(["true"])
def test_shares(shared): pass

@pytest.mark.job
def test_job(shared): subprocess.run(["true"])

@pytest.mark.job
def test_changes_the_machine(mounted): pass

@pytest.mark.system
def test_system(shared, mounted): pass
"""


@pytest.mark.job(every=4)
def test_a_test_starts_no_more_than_its_tier_allows(tmp_path: Path) -> None:
    """Neither itself, nor by a fixture that it shares with others: the error names the mark that it
    needs."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_tiers.py").write_text(TIERS)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n    job: as in the project's own\n    system: the same\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-q",
        "--rootdir",
        tmp_path,
        tmp_path,
    ]
    environment = {**os.environ, "COLUMNS": "200"}
    out = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    ).stdout
    found = dict(
        re.findall(
            r"^ERROR test_tiers\.py::test_(\w+) - .*with pytest\.mark\.(\w+)",
            out,
            flags=re.MULTILINE,
        )
    )
    assert {"starts": "job", "shares": "job", "changes_the_machine": "system"} == found, out


TURNS = """
import time, pytest

def spend(name):
    began = time.monotonic()
    time.sleep(0.3)
    with open("turns", "a") as turns:
        turns.write(f"{name} {began} {time.monotonic()}\\n")

@pytest.mark.parametrize("number", range(8))
def test_beside_others(number): spend("beside")

@pytest.mark.alone
@pytest.mark.parametrize("number", range(3))
def test_alone(number): spend("alone")
"""


@pytest.mark.job(every=4)
def test_who_wants_to_be_alone_is(tmp_path: Path) -> None:
    """With two processes: while a test with the mark runs, no other test does; the others
    overlap."""
    for name in ("conftest.py", "repository.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path)
    (tmp_path / "test_turns.py").write_text(TURNS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone: as in the project's own\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-q",
        "-n",
        "2",
        "--rootdir",
        tmp_path,
        tmp_path,
    ]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "11 passed" in ended.stdout, ended.stdout + ended.stderr
    lines = (tmp_path / "turns").read_text().splitlines()
    turns = [(name, float(began), float(end)) for name, began, end in map(str.split, lines)]
    together = {
        (one[0], other[0]) for one in turns for other in turns if one[1] < other[1] < one[2]
    }
    assert {("beside", "beside")} == together


def test_the_small_tree_is_an_image_tree(small_tree: Path) -> None:
    """36 images in 4 classes, all of which can be decoded."""
    paths = sorted(small_tree.glob("n*/n*_*.JPEG"))
    assert (4, 36) == (len({path.parent for path in paths}), len(paths))
    for path in paths:
        with Image.open(path) as image:
            image.load()
            assert ("JPEG", "RGB") == (image.format, image.mode)
