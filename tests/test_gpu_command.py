"""`make test-gpu` where something is missing: everything is skipped by its name, and nothing
fails."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.job

ROOT: Final = Path(__file__).parents[1]
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
    words = recipe.partition("-m pytest")[2].replace("$(TEST_ARGS)", "").split()
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
