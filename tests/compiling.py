"""C programs of the tests, compiled with the compiler of the machine."""

import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from repository import NATIVE, PROGRAMS

WARNINGS: Final = ("-Wall", "-Wextra", "-Werror")


def compiler() -> str:
    """The C compiler of this machine; skips if there is none."""
    found = shutil.which("cc")
    if found is None:
        pytest.skip("no C compiler")
    return found


def native_sources(*folders: str) -> list[str]:
    """The C files of some folders of ioprof's C sources, to be compiled into a program."""
    return [str(path) for folder in folders for path in sorted((NATIVE / folder).glob("*.c"))]


def compiled(source: str, program: Path, *options: str) -> Path:
    """A program of `tests/programs`, with ioprof's headers on the search path; skips where a
    library of `options` is missing."""
    include = [f"-I{NATIVE / folder}" for folder in ("ring", "capture")]
    words = [
        compiler(),
        "-std=gnu11",
        "-O1",
        "-g",
        *WARNINGS,
        "-pthread",
        *include,
        PROGRAMS / source,
        *options,
    ]
    built = subprocess.run([*words, "-o", program, "-ldl"], capture_output=True, text=True)
    is_missing = "cannot find" in built.stderr or "No such file or directory" in built.stderr
    if built.returncode and options and is_missing:
        pytest.skip(f"the C compiler lacks a library for: {' '.join(options)}")
    assert (0, "") == (built.returncode, built.stderr)
    return program


def sanitized(name: str, sources: Sequence[str], folder: Path) -> tuple[Path, dict[str, str]]:
    """An extension of ioprof built with the sanitizers of addresses and undefined behaviour, and
    the environment for its Python."""
    runtime = subprocess.run(
        [compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(runtime).is_absolute():
        pytest.skip("the C compiler lacks the library of -fsanitize=address")
    built = folder / f"{name}.so"
    command = [
        compiler(),
        "-std=gnu11",
        "-O1",
        "-g",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-DPy_LIMITED_API=0x030B0000",
    ]
    command += [
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        f"-I{sysconfig.get_paths()['include']}",
    ]
    ended = subprocess.run(
        [*command, *sources, "-o", str(built)], capture_output=True, text=True, check=False
    )
    assert (0, "") == (ended.returncode, ended.stderr)
    return built, {
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
    }


def built_statically(text: str, program: Path) -> Path:
    """Compile a static program; skips if the C library cannot be linked statically."""
    source = program.with_suffix(".c")
    source.write_text(text)
    built = subprocess.run(
        [compiler(), "-static", source, "-o", program], capture_output=True, text=True
    )
    if built.returncode:
        pytest.skip(
            f"the C compiler makes no static programs here: {built.stderr.strip().splitlines()[-1]}"
        )
    return program
