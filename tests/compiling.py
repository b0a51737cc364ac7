"""C programs of the tests, made with the machine's compiler."""

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
from repository import NATIVE, PROGRAMS

WARNINGS: Final = ("-Wall", "-Wextra", "-Werror")


def compiler() -> str:
    """The C compiler of this machine; skips where there is none."""
    found = shutil.which("cc")
    if found is None:
        pytest.skip("no C compiler")
    return found


def compiled(source: str, program: Path, *options: str) -> Path:
    """A program of `tests/programs`, with ioprof's own headers at hand; skips where the machine lacks a library of `options`."""
    words = [compiler(), "-std=gnu11", "-O1", "-g", *WARNINGS, "-pthread", f"-I{NATIVE}", PROGRAMS / source, *options]
    built = subprocess.run([*words, "-o", program, "-ldl"], capture_output=True, text=True)
    if built.returncode and "cannot find" in built.stderr:
        pytest.skip(f"the C compiler lacks a library for: {' '.join(options)}")
    assert (0, "") == (built.returncode, built.stderr)
    return program


def built_statically(text: str, program: Path) -> Path:
    """A program that needs no dynamic linker; skips where the C library cannot be linked so."""
    source = program.with_suffix(".c")
    source.write_text(text)
    built = subprocess.run([compiler(), "-static", source, "-o", program], capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"the C compiler makes no static programs here: {built.stderr.strip().splitlines()[-1]}")
    return program
