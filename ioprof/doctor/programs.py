"""Whether ioprof's capture library and hooks work in the programs of a job."""

import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ioprof import jpeg
from ioprof.doctor.finding import Finding, Surroundings, content, limited, missing, ok
from ioprof.instrument import preload
from ioprof.instrument.variables import DEBUG_VARIABLE, SPOOL_VARIABLE

_TRIAL_BYTES: Final = 1 << 20
_TIMEOUT_S: Final = 60
_OTHER_TRACERS: Final = (
    "darshan",
    "dftracer",
    "recorder",
    "score-p",
    "scorep",
    "extrae",
    "asan",
    "tsan",
    "strace",
)
"""Libraries that replace or wrap the same functions."""
_INTERPRETER_HEADER: Final = 3  # PT_INTERP, <elf.h>: the program asks for a dynamic linker
_ASK_HOOKS: Final = """
import sys
recorder = sys.modules.get("ioprof.instrument.recorder")
print("recording" if recorder and recorder.is_recording() else "not recording")
"""
_BUILD: Final = (
    "install a C compiler (apt-get install gcc python3-dev), then ioprof anew: pip install"
    " --force-reinstall --no-deps ioprof"
)

_LIBJPEG: Final = (
    "install Pillow's wheel (pip install --force-reinstall pillow) or libjpeg-turbo (apt-get"
    " install libjpeg62-turbo)"
)


def capture_library(surroundings: Surroundings) -> Finding:
    """Whether reads of any program are recorded: `cat` reads a file under the library, and the
    recorded bytes are counted.
    """
    name, without = "capture library", "only reads of ioprof's own loaders are recorded"
    library = preload.library(surroundings.package)
    if library is None:
        return missing(
            name, f"not built: there is no _capture.so in {surroundings.package}", without, _BUILD
        )
    with tempfile.TemporaryDirectory(prefix="ioprof-doctor-") as folder:
        data = Path(folder) / "data"
        data.write_bytes(os.urandom(_TRIAL_BYTES))
        spool = Path(folder) / "spool"
        spool.mkdir()
        cat = shutil.which("cat", path=surroundings.environment.get("PATH"))
        program = f"import sys; sys.stdout.buffer.write(open({str(data)!r}, 'rb').read())"
        command = [cat, str(data)] if cat else [surroundings.python, "-S", "-c", program]
        ended = _run(command, _job_environment(surroundings, spool, hooks=False))
        if ended.returncode or ended.stdout != data.read_bytes():
            return missing(
                name, f"{library.name} does not work here: {_last_line(ended)}", without, _BUILD
            )
        seen_bytes = _recorded_bytes(spool, data)
    seen = f"{seen_bytes:,} of {_TRIAL_BYTES:,} bytes of a program's reads were recorded"
    if seen_bytes != _TRIAL_BYTES:
        return limited(
            name,
            f"{seen}: {_last_line(ended)}",
            "some reads are missing; the report shows which share",
            _BUILD,
        )
    return ok(name, seen, "reads of every dynamically linked program of a job are recorded")


def _recorded_bytes(spool: Path, data: Path) -> int:
    import polars as pl

    from ioprof.ingest import read_spool

    trace = read_spool(spool)
    files = trace.files.filter(pl.col("path") == str(data))["file"]
    return int(
        trace.spans.filter(pl.col("kind") == "read", pl.col("file").is_in(files.implode()))[
            "bytes"
        ].sum()
    )


def python_hooks(surroundings: Surroundings) -> Finding:
    """Whether a Python process of a job starts recording automatically."""
    name, means = (
        "Python hooks",
        "batches, waits, decode and steps of a Python job are not recorded, only its reads",
    )
    start = preload.site(surroundings.package) / "sitecustomize.py"
    if not start.is_file():
        anew = "install ioprof anew: pip install --force-reinstall --no-deps ioprof"
        return missing(name, f"there is no {start}", means, anew)
    with tempfile.TemporaryDirectory(prefix="ioprof-doctor-") as folder:
        environment = _job_environment(surroundings, Path(folder), hooks=True)
        ended = _run([surroundings.python, "-c", _ASK_HOOKS], environment)
    if ended.stdout.strip() == b"recording":
        seen = "a Python process started here records automatically"
        return ok(name, seen, "batches, waits, decode and steps of Python jobs are recorded")
    again = (
        f"{DEBUG_VARIABLE}=1 PYTHONPATH={environment['PYTHONPATH']} {SPOOL_VARIABLE}=/tmp"
        f" {surroundings.python} -c ''"
    )
    return missing(
        name, f"a Python process started here does not record: {_last_line(ended)}", means, again
    )


def jpeg_decoder(_surroundings: Surroundings) -> Finding:
    """Which library decodes JPEGs in ioprof's own loaders and converters."""
    name, decoder = "JPEG decoder", jpeg.installed()
    if decoder is None:
        means = (
            "loaders and converters decode by Pillow: whole images, and corrupt ones pass where"
            " Pillow lets them"
        )
        return missing(
            name,
            "neither libjpeg-turbo nor simplejpeg can be used",
            means,
            "pip install simplejpeg",
        )
    if decoder.decodes_regions:
        return ok(
            name,
            decoder.name,
            "loaders decode only the crop of each JPEG, and corrupt ones are refused",
        )
    means = "loaders decode whole JPEGs; corrupt ones are refused"
    return limited(name, f"{decoder.name}; no libjpeg.so.62 was found", means, _LIBJPEG)


def preloaded(surroundings: Surroundings) -> Finding:
    """Whether LD_PRELOAD names other libraries, in addition to ioprof's."""
    name = "LD_PRELOAD"
    value = surroundings.environment.get("LD_PRELOAD", "")
    everywhere = content(Path("/etc/ld.so.preload")) or ""
    found = [*value.replace(":", " ").split(), *everywhere.split()]
    if not found:
        return ok(name, "not set", "no other library interferes")
    absent = [
        entry for entry in found if "/" in entry and "$" not in entry and not Path(entry).exists()
    ]
    if absent:
        means = "every program of the job prints an error of the dynamic linker"
        return limited(
            name,
            f"names a library that does not exist: {', '.join(absent)}",
            means,
            "unset LD_PRELOAD",
        )
    tracers = [
        entry
        for entry in found
        if any(tracer in Path(entry).name.lower() for tracer in _OTHER_TRACERS)
    ]
    if tracers:
        means = "two tracers in one job: each counts the other's files and adds to its times"
        return limited(
            name,
            f"holds another tracer: {', '.join(tracers)}",
            means,
            "unset LD_PRELOAD (or: module unload darshan)",
        )
    return ok(
        name,
        f"holds {', '.join(found)}",
        "ioprof's library is loaded first, and the others stay: libraries such as allocators do not"
        " interfere",
    )


def interpreter(surroundings: Surroundings) -> Finding:
    """Whether a preloaded library works in this Python interpreter."""
    name, python = "Python program", Path(surroundings.python).resolve()
    linker = dynamic_linker(python)
    if linker is None:
        means = "a statically linked Python ignores LD_PRELOAD: its reads are not recorded"
        return missing(
            name,
            f"{python} is statically linked",
            means,
            "use a Python of the distribution or of conda",
        )
    if "musl" in linker:
        means = (
            "the capture library is written for glibc; built here it may work: see the first"
            " finding"
        )
        return limited(
            name,
            f"{python} uses musl",
            means,
            "use a Python linked with glibc, e.g. of conda or Debian",
        )
    return ok(name, f"{python} uses {linker}", "LD_PRELOAD works in it")


def dynamic_linker(program: Path) -> str | None:
    """The dynamic linker in the header of an ELF program of this machine's word size; None for a
    static one (man elf).
    """
    data = program.read_bytes()[: 1 << 16]
    if data[:4] != b"\x7fELF" or data[4] != 2:
        raise ValueError(f"{program}: not a 64-bit ELF program")
    begin, (size, count) = (
        struct.unpack_from("=Q", data, 32)[0],
        struct.unpack_from("=HH", data, 54),
    )
    for place in range(count):
        kind, _, offset, _, _, length = struct.unpack_from("=IIQQQQ", data, begin + place * size)
        if kind == _INTERPRETER_HEADER:
            return data[offset : offset + length].rstrip(b"\0").decode(errors="replace")
    return None


def _job_environment(surroundings: Surroundings, spool: Path, *, hooks: bool) -> dict[str, str]:
    """The environment of a job's processes."""
    return preload.environment(
        spool, surroundings.environment, hooks=hooks, package=surroundings.package
    )


def _run(
    command: list[str], environment: Mapping[str, str]
) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        command, env=dict(environment), capture_output=True, timeout=_TIMEOUT_S, check=False
    )


def _last_line(ended: "subprocess.CompletedProcess[bytes]") -> str:
    lines = ended.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {ended.returncode}, and no message"
