"""`make test-gpu` where something is missing: everything is skipped by its name, and nothing
fails."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
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
            gpu_blocks.run_block(name, small=True, left_s=left_s, writer=writer)
    parts = saved.read_text().split("\n## ")[1:]
    assert [gpu_blocks.BLOCKS[name].title for name in ("ranks", "cufile", "gains")] == [
        part.partition("\n")[0] for part in parts
    ]
    assert "Stopped after 2 s." in parts[0]
    assert "kvikio" in parts[1] or "MB recorded as reads" in parts[1]
    assert "no time was left" in parts[2]


@pytest.mark.job(every=4)
def test_a_block_runs_without_a_gpu(tmp_path: Path) -> None:
    """On an emulated device, in small: two ranks, twice the data, cold, staged; the causes of each
    step sum to it."""
    saved = tmp_path / "saved.md"
    with gpu_blocks.Writer(saved) as writer:
        gpu_blocks.run_block("ranks", small=True, left_s=200, writer=writer)
    text = saved.read_text()
    assert "FAILED" not in text
    assert ["| 0 ", "| 1 "] == [
        line[:4] for line in text.splitlines() if line[:3] in ("| 0", "| 1")
    ]
    assert "NO" not in text
