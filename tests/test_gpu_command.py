"""`make test-gpu` where something is missing: everything is skipped by its name, and nothing
fails."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest
import slow_storage
from repository import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import gpu_blocks

pytestmark = pytest.mark.job

ABSENT: Final = (
    "PIL,hypothesis,jsonschema,lmdb,msgspec,numpy,polars,psutil,rich,simplejpeg,torch,typer"
)
PROGRAM: Final = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))  # as if not installed: importlib finds None
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""  # noqa: E501


def test_without_the_packages_all_is_skipped_by_name() -> None:
    """On a machine that has pytest and little else: no import fails, and what is missing is
    named."""
    recipe = (ROOT / "Makefile").read_text().partition("\ntest-gpu:")[2].partition("\n\n")[0]
    assert "benchmarks/gpu_blocks.py" in recipe
    words = gpu_blocks.TESTS.split()
    command = [sys.executable, "-c", PROGRAM, ABSENT, *words, "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert 0 == ended.returncode, ended.stdout + ended.stderr
    modules = len(list((ROOT / "tests" / "gpu").glob("test_*.py")))
    assert f"{modules} skipped" in ended.stdout
    assert (
        "not installed: lmdb, msgspec, numpy, pillow, polars, psutil, rich, simplejpeg, torch,"
        " typer" in ended.stdout
    )


def test_a_block_that_is_stopped_leaves_its_lines_and_the_next_one_runs(tmp_path: Path) -> None:
    """In the order of their importance, each for its time or what is left of all; one that lacks
    something says what."""
    saved = tmp_path / "saved.md"
    with gpu_blocks.Writer(saved) as writer:
        for name, left_s in (("ranks", 2), ("cufile", 60), ("gains", 0.5)):
            assert gpu_blocks.run_block(name, small=True, left_s=left_s, writer=writer)
    parts = saved.read_text().split("\n## ")[1:]
    assert [gpu_blocks.BLOCKS[name].title for name in ("ranks", "cufile", "gains")] == [
        part.partition("\n")[0] for part in parts
    ]
    assert "Stopped after 2 s." in parts[0]
    assert "kvikio" in parts[1] or "MB recorded as reads" in parts[1]
    assert "no time was left" in parts[2]


def blocks(*words: object, **variables: str) -> "subprocess.Popen[str]":
    """The program, in small, in a group of processes of its own."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, gpu_blocks.__file__, "--small", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_a_program_of_a_block_that_fails_makes_the_command_fail() -> None:
    """The block is said to have failed, with the end of what was written, and so is all."""
    with blocks("--only", "tests", TEST_ARGS="--no-such-option") as process:
        said = process.communicate(timeout=120)[0]
    assert "unrecognized arguments: --no-such-option" in said
    assert "FAILED" in said.splitlines()[-1]
    assert "pytest ended with 4" in said.splitlines()[-1]
    assert 1 == process.returncode


_TWO_TESTS: Final = """
import select
def test_first():
    pass
def test_second():
    with open({fifo!r}, "rb") as fifo:
        assert select.select([fifo], [], [], 60)[0]
"""


def test_the_result_of_each_test_comes_when_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that ends within the block leaves those of the tests before."""
    program = tmp_path / "test_two.py"
    os.mkfifo(tmp_path / "fifo")
    program.write_text(_TWO_TESTS.format(fifo=str(tmp_path / "fifo")))
    monkeypatch.setenv("TEST_ARGS", f"{program} -k test_two")
    lines = gpu_blocks.tests(gpu_blocks.Setting(tmp_path, is_small=True))
    with (tmp_path / "fifo").open("r+b", buffering=0) as fifo:
        first = next(line for line in lines if "::test_first" in line)
        fifo.write(b"1")  # the second test ends by it
        second = next(line for line in lines if "::test_second" in line)
    assert ["PASSED", "PASSED"] == [line.split("::")[1].split()[1] for line in (first, second)]
    assert "2 passed" in list(lines)[-1]


@pytest.mark.system
def test_a_stopped_block_unmounts_its_disk(tmp_path: Path) -> None:
    """No mount is left in its folder, which would end all later blocks when it is removed."""
    if reason := slow_storage.missing():
        pytest.skip(reason)
    with blocks("--only", "storage", "--in", tmp_path) as process:
        while process.poll() is None and not os.path.ismount(tmp_path / "disk"):
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGTERM)
        said = process.communicate(timeout=60)[0]
    assert 1 == process.returncode, said
    assert not (tmp_path / "disk").exists()
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


@pytest.mark.job(every=4)
def test_a_block_runs_without_a_gpu(tmp_path: Path) -> None:
    """On an emulated device, in small: two ranks, twice the data, cold, staged; the causes of each
    step sum to it."""
    saved = tmp_path / "saved.md"
    with gpu_blocks.Writer(saved) as writer:
        assert gpu_blocks.run_block("ranks", small=True, left_s=200, writer=writer)
    text = saved.read_text()
    assert "FAILED" not in text
    assert ["| 0 ", "| 1 "] == [
        line[:4] for line in text.splitlines() if line[:3] in ("| 0", "| 1")
    ]
    assert "NO" not in text
