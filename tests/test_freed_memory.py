"""A process that returns what it freed: glibc's large blocks, and the settings of the allocator in polars."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, subprocess, sys
from pathlib import Path
from ioprof.process import return_freed_memory

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20

environment = {**os.environ, **dict(word.split("=") for word in sys.argv[2:])}
if sys.argv[1] == "return":
    return_freed_memory(environment)
del bytearray(b"x" * (24 << 20))[:]  # glibc takes blocks up to this size from its heap from now on
before = resident_mb()
blocks = [bytearray(b"x" * (2 << 20)) for _ in range(8)]
del blocks
print(resident_mb() - before)
ask = [sys.executable, "-c", "import os; print(os.environ.get('_RJEM_MALLOC_CONF'))"]
for env in (None, dict(os.environ)):
    print(subprocess.run(ask, env=env, capture_output=True, text=True, check=True).stdout, end="")
"""


def lines(*words: str) -> list[str]:
    command = [sys.executable, "-c", PROGRAM, *words]
    # Polars sets the variable itself in each process that imports it, as this one may have done.
    env = {name: value for name, value in os.environ.items() if name != "_RJEM_MALLOC_CONF"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout.splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_a_process_returns_what_it_freed_and_its_job_is_not_told() -> None:
    """Of 16 MB that were freed in blocks of 2 MB nothing stays; a process that is given an environment has no setting of polars."""
    kept_mb, inherited, given = lines("return")
    assert int(kept_mb) <= 2
    assert "dirty_decay_ms" in inherited
    assert "None" == given
    assert 12 <= int(lines("keep")[0])  # what would otherwise stay


def test_what_the_user_set_for_polars_stays() -> None:
    """Nothing is set then."""
    assert "None" == lines("return", "_RJEM_MALLOC_CONF=x")[1]
