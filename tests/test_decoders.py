"""Decoders of many libraries under the hooks: the job gets the same data, and their time is that of
a stopwatch in the program."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import jobs
import polars as pl
import pytest
from hooked import SITE, finish, of_kind, recorded, run, start
from preload import needs_library
from quiet_machine import comparing_times, on_a_quiet_machine
from repository import EXAMPLES, PROGRAMS
from slow_storage import evict, throttled_disk

import ioprof
from ioprof.analysis.intervals import intersect, total
from ioprof.analysis.selection import intervals
from ioprof.format.trace import Trace
from ioprof.instrument.hooks import WATCHED
from ioprof.instrument.hooks.libraries import decoders
from ioprof.report.run import Run

PROGRAM: Final = PROGRAMS / "decode_with.py"

LIBRARIES: Final = (
    "cv2",
    "cv2 video",
    "torchvision",
    "torchcodec",
    "simplejpeg",
    "turbojpeg",
    "imageio",
    "av",
    "soundfile",
    "pyarrow",
    "pandas",
    "polars",
    "numpy",
    "h5py",
    "zarr",
    "safetensors",
    "torch",
    "tokenizers",
    "transformers",
    "zstandard",
    "lz4",
    "zlib",
)
PLACES: Final = ("worker", "thread", "main")

MORE_NAMES: Final = {
    "zlib": ("zlib.", "gzip.", "bz2", "lzma."),
    "cv2 video": ("cv2.VideoCapture.",),
    "cv2": ("cv2.im",),
}
"""What the names of a library's spans begin with, where that is not its own name and a dot."""


@dataclass(frozen=True)
class Compared:
    """What the program found with the hooks and without them, and what was recorded."""

    hooked: dict[str, Any]
    bare: dict[str, Any]
    trace: Trace


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip(
        "pandas", reason="pandas is not installed (pip install 'ioprof[libraries]')"
    )
    folder = tmp_path_factory.mktemp("data")
    run([PROGRAM, "make", folder], None)
    return folder


@pytest.fixture(scope="module")
def compare(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Compared]:
    """Run the program, once for each attempt."""

    @cache
    def compare(attempt: str) -> Compared:
        folder = tmp_path_factory.mktemp(attempt)
        with start(
            [PROGRAM, "run", data, folder / "bare"], None, PYTHONPATH=str(EXAMPLES)
        ) as beside:
            run(
                [PROGRAM, "run", data, folder / "hooked"],
                folder / "spool",
                PYTHONPATH=f"{SITE}:{EXAMPLES}",
            )
            finish(beside)
        hooked, bare = (json.loads((folder / name).read_text()) for name in ("hooked", "bare"))
        return Compared(hooked, bare, recorded(folder / "spool"))

    return compare


@pytest.mark.job(every=4)
@pytest.mark.parametrize("library", LIBRARIES)
def test_what_is_decoded_is_the_same(compare: Callable[[str], Compared], library: str) -> None:
    """To the bit, with and without the hooks, in a worker, in a thread and in the main thread."""
    compared = compared_in(compare("first"), library)
    for place in PLACES:
        digest = compared.hooked[library][place]["digest"]
        assert (
            digest
            == compared.bare[library][place]["digest"]
            == compared.hooked[library]["main"]["digest"]
        )


@pytest.mark.parametrize("library", LIBRARIES)
@on_a_quiet_machine
def test_the_time_is_that_of_a_stopwatch(compare: Callable[[str], Compared], library: str) -> None:
    """In all of these places: the sum of the spans is within 10 % of what the program measured
    around the same calls, and not above it."""
    # The stopwatch also counts while another process has the core, between its start and that of
    # the span.
    if wrong_times(compared_in(compare("first"), library), library):
        with comparing_times():
            assert {} == wrong_times(compare("again"), library)


def compared_in(compared: Compared, library: str) -> Compared:
    """Both outcomes, if the library is there."""
    if library not in compared.hooked:
        pytest.skip(f"{library.partition(' ')[0]} cannot be imported")
    return compared


def wrong_times(compared: Compared, library: str) -> dict[str, float]:
    """What share of its time on the stopwatch the spans of a library have, by place, where it is
    not from 0.9 to 1."""
    spans, shares = compared.trace.spans.with_columns(pl.col("name").cast(str)), {}
    for place in PLACES:
        found = compared.hooked[library][place]
        own = spans.filter(pl.col("pid") == found["pid"], pl.col("tid") == found["tid"])
        [use] = own.filter(pl.col("name") == f"use {library}").iter_rows(named=True)
        begins = MORE_NAMES.get(library, (f"{library}.",))
        decodes = own.filter(
            pl.col("kind") == "decode",
            pl.col("start_ns").is_between(use["start_ns"], use["end_ns"]),
            pl.any_horizontal(pl.col("name").str.starts_with(name) for name in begins),
        )
        shares[place] = (decodes["end_ns"] - decodes["start_ns"]).sum() / found["ns"]
    return {place: share for place, share in shares.items() if not 0.9 <= share <= 1}


def test_every_module_of_the_tables_is_watched() -> None:
    """A table's module that is not watched would never be observed."""
    for module in (*decoders.FUNCTIONS, *decoders.ITERATORS, *decoders.TYPES):
        assert module in WATCHED


RATE: Final = 4 << 20
"""Of the slow disk, bytes/s."""


@dataclass(frozen=True)
class Parts:
    """Seconds of the decode spans of a library."""

    decodes: float
    reads: float
    """During which its process read from storage."""


def parts(run: Path, library: str) -> Parts:
    """What the worker did while it used that library."""
    spans = ioprof.load(run).spans.with_columns(pl.col("name").cast(str))
    [use] = spans.filter(pl.col("name") == f"use {library}").iter_rows(named=True)
    own = spans.filter(
        pl.col("pid") == use["pid"], pl.col("start_ns").is_between(use["start_ns"], use["end_ns"])
    )
    decodes = intervals(own.filter(pl.col("kind") == "decode"))
    reads = intervals(
        own.filter(pl.col("kind") == "read", pl.col("source").is_in(["storage", "unknown"]))
    )
    return Parts(total(decodes) / 1e9, total(intersect(decodes, reads)) / 1e9)


@needs_library
@on_a_quiet_machine
def test_reads_within_a_decode_are_told_from_it(tmp_path: Path) -> None:
    """Parquet, HDF5, zarr and npz on a slow disk: of the time of a decode the reads have what the
    disk needs at its rate, and the rest is the processor's time. When the file is in memory reads
    have none."""
    program = PROGRAMS / "decode_cold.py"
    with throttled_disk(tmp_path) as disk:
        subprocess.run([sys.executable, program, "make", disk.path], check=True)
        printed = []
        for name in ("warm", "cold"):
            if name == "cold":
                evict(disk.path)
                disk.throttle(RATE)
            command = [
                sys.executable,
                "-m",
                "ioprof",
                "record",
                "--quiet",
                "--out",
                tmp_path / name,
                "--",
            ]
            command += [sys.executable, program, "run", disk.path]
            ended = subprocess.run(
                [*map(str, command)],
                preexec_fn=disk.join,
                check=True,
                capture_output=True,
                text=True,
            )
            printed.append(
                {library: words for library, *words in map(str.split, ended.stdout.splitlines())}
            )
        sizes = {path.stem + path.suffix: size_of(path) for path in disk.path.iterdir()}
    assert {library: words[0] for library, words in printed[0].items()} == {
        name: words[0] for name, words in printed[1].items()
    }
    names = {
        "pyarrow.dataset": "data.parquet",
        "h5py": "data.h5",
        "zarr": "data.zarr",
        "numpy": "data.npz",
    }
    assert (
        names.keys() >= {library for library, name in names.items() if name in sizes} >= {"numpy"}
    )
    for library, name in names.items():
        if name in sizes:
            warm, cold = (parts(tmp_path / kind, library) for kind in ("warm", "cold"))
            cpu_s = float(printed[1][library][1])
            with comparing_times():
                # The disk's limit lets bursts pass, and opening a file reads some of it before
                # anything is decoded.
                assert 0.5 * sizes[name] / RATE <= cold.reads <= 3 * sizes[name] / RATE, (
                    library,
                    warm,
                    cold,
                )
                assert warm.reads < 0.1 * cold.reads, (library, warm, cold)
                assert 0.5 * cpu_s <= cold.decodes - cold.reads <= 4 * cpu_s + 0.2 * cold.reads, (
                    library,
                    cpu_s,
                    warm,
                    cold,
                )
    assert "storage" == Run.load(tmp_path / "cold").summary.verdict.bound_by


def size_of(path: Path) -> int:
    """Bytes of a file, or of all in a folder."""
    return sum(each.stat().st_size for each in (path, *path.rglob("*")) if each.is_file())


@pytest.mark.job(every=4)
@pytest.mark.parametrize(
    ("library", "call"),
    [
        (
            "cv2",
            (
                "numpy.zeros((300, 400, 3), 'u1'); f = lambda x: cv2.cvtColor(cv2.resize(x, (200,"
                " 100)), cv2.COLOR_BGR2RGB)"
            ),
        ),
        (
            "torchvision.transforms.v2",
            (
                "torch.zeros((3, 300, 400)); f = lambda x: v2.Normalize([0.5],"
                " [0.5])(v2.Resize(200)(x))"
            ),
        ),
        (
            "torchvision.transforms.v2",
            (
                "torch.zeros((3, 300, 400)); f = v2.Compose([v2.Resize(200),"
                " v2.Compose([v2.Resize(100)])])"
            ),
        ),
    ],
)
def test_transforms_are_observed(tmp_path: Path, library: str, call: str) -> None:
    """OpenCV's functions by themselves, torchvision's classes by themselves, or in pipelines, whose
    operations have names. An observed function of C that is an attribute of a class gets no further
    argument there."""
    name = library.rpartition(".")[2]
    program = f"""
import numpy, sys, torch
if torch.version.cuda is None:  # its library, as package indexes have it, cannot be loaded beside a torch for CPUs
    operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        operators.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
try:
    import {library}; from {library.rpartition(".")[0] or library} import *; {name} = sys.modules["{library}"]
except ImportError as error:
    sys.exit(f"cannot be imported: {{error}}")
x = {call}
for _ in range(5):
    f(x)
if "{name}" == "cv2":
    class Mine:
        resize = cv2.resize
    Mine().resize(x, (20, 10))
"""  # noqa: E501
    printed = start(["-c", program], tmp_path / "spool", PYTHONPATH=f"{SITE}:{EXAMPLES}")
    out, error = printed.communicate(timeout=120)
    if "cannot be imported" in error:
        pytest.skip(error.splitlines()[-1])
    assert 0 == printed.returncode, out + error
    names = of_kind(recorded(tmp_path / "spool"), "transform")["name"].cast(str)
    if name == "cv2":
        assert 11 == len(names)
    else:
        operations = ("Resize", "Normalize") if "Normalize" in call else ("Resize",)
        assert 10 == sum(int((names == operation).sum()) for operation in operations)
        assert {*operations, "Compose"} >= set(names)


@pytest.mark.job(every=4)
def test_frames_that_are_decoded_for_one_that_is_used_are_told(tmp_path: Path) -> None:
    """As many as the program counts, but for a call at the end of each clip."""
    pytest.importorskip("av")
    program = [sys.executable, PROGRAMS / "decode_clips.py", tmp_path / "clips", 8]
    ended = jobs.ioprof("record", "--quiet", "--out", "run", "--", *program, cwd=tmp_path)
    assert 0 == ended.code, ended.err
    said, summary = json.loads(ended.out), Run.load(tmp_path / "run").summary
    found = summary.findings.frames
    assert found is not None
    assert (said["used"], "PyAV") == (found.used, found.library)
    assert found.decoded == pytest.approx(said["decoded"], rel=0.1)
    told = (*summary.verdict.advice, *summary.verdict.candidates)
    assert any("were used" in each.action for each in told)
