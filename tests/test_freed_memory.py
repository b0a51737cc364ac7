"""A process that returns what it freed: glibc's large blocks, and the settings of the allocator in
polars."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.job

PROGRAM = """
import ctypes, os, sys
from pathlib import Path
from ioprof.process import return_freed_memory

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20

os.environ.update(word.split("=", 1) for word in sys.argv[2:])
if sys.argv[1] == "return":
    return_freed_memory(os.environ)
del bytearray(b"x" * (24 << 20))[:]  # glibc takes blocks up to this size from its heap from now on
before = resident_mb()
blocks = [bytearray(b"x" * (2 << 20)) for _ in range(8)]
del blocks
print(resident_mb() - before)
import polars
polars.DataFrame({"a": [1]}).select(polars.col("a") + 1)
get_variable = ctypes.CDLL(None).getenv  # what the allocator has read
get_variable.restype = ctypes.c_char_p
print((get_variable(b"_RJEM_MALLOC_CONF") or b"").decode())
"""


def lines(*words: str) -> list[str]:
    command = [sys.executable, "-c", PROGRAM, *words]
    # Polars sets the variable itself in each process that imports it, as this one may have done.
    env = {name: value for name, value in os.environ.items() if name != "_RJEM_MALLOC_CONF"}
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=env
    ).stdout.splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_a_process_returns_what_it_freed() -> None:
    """Of 16 MB that were freed in blocks of 2 MB nothing stays, and polars' allocator was told so
    when it was loaded."""
    kept_mb, settings = lines("return")
    assert int(kept_mb) <= 2
    # the last of a name counts
    assert settings.endswith("narenas:1,dirty_decay_ms:50,muzzy_decay_ms:0")
    assert 12 <= int(lines("keep")[0])  # what would otherwise stay


def test_what_the_user_set_for_polars_stays() -> None:
    """It is the last that the allocator reads."""
    assert lines("return", "_RJEM_MALLOC_CONF=narenas:3")[1].endswith(",narenas:3")


def test_a_recorded_job_is_not_told(tmp_path: Path) -> None:
    """The command that is recorded has the environment of the shell."""
    ask = "import os; print(os.environ.get('_RJEM_MALLOC_CONF'))"
    command = [
        sys.executable,
        "-m",
        "ioprof",
        "record",
        "--quiet",
        "--out",
        str(tmp_path / "run"),
        "--",
        sys.executable,
        "-c",
        ask,
    ]
    env = {name: value for name, value in os.environ.items() if name != "_RJEM_MALLOC_CONF"}
    assert (
        "None"
        == subprocess.run(
            command, capture_output=True, text=True, check=True, env=env
        ).stdout.strip()
    )
