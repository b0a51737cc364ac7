"""A script that nobody here wrote, from a package: DCGAN, an example of pytorch-ignite, on folders
of images."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import polars as pl
import pytest
import slow_storage
from preload import check_counters, needs_library
from repository import EXAMPLES, PROGRAMS

import ioprof
from ioprof.cli import main
from ioprof.converters import GenerateOptions, generate
from ioprof.instrument.faults import refusal

SCRIPT: Final = next(EXAMPLES.glob("pytorch_ignite-*/examples/gan/dcgan.py"), None)
IMAGES, BATCH, EPOCHS, WORKERS = 32, 8, 2, 2
STEPS: Final = EPOCHS * IMAGES // BATCH

pytestmark = [
    pytest.mark.system,
    needs_library,
    pytest.mark.skipif(
        SCRIPT is None, reason=f"no example of pytorch-ignite in {EXAMPLES}; .ci/run puts it there"
    ),
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs in class folders."""
    folder = tmp_path_factory.mktemp("photos") / "tree"
    generate(folder, GenerateOptions(images=IMAGES, classes=4))
    return folder


def trained(tree: Path, into: Path, *before: object) -> None:
    """Train as the example's README says, but for a size that a test can wait for."""
    into.mkdir()
    words = [
        "--dataset",
        "folder",
        "--dataroot",
        tree,
        "--workers",
        WORKERS,
        "--batch-size",
        BATCH,
        "--epochs",
        EPOCHS,
        "--no-cuda",
    ]
    words += ["--g-filters", 4, "--d-filters", 4, "--seed", 1, "--output-dir", into]
    line = [*before, sys.executable, PROGRAMS / "run_example.py", SCRIPT, *words]
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        list(map(str, line)), capture_output=True, text=True, timeout=200, env=environment
    )
    assert 0 == ended.returncode, ended.stderr


def drawn(folder: Path) -> dict[str, bytes]:
    """The pictures that the networks made."""
    return {path.name: path.read_bytes() for path in folder.glob("*.png")}


@pytest.mark.system(every=4)
def test_its_report_shows_what_its_workers_read_and_what_it_waited_for(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each byte of each image in each epoch, by a worker and for a batch; each decode, batch, wait
    and step; faults of libraries.

    And what it drew is what it draws without.
    """
    slow_storage.evict(EXAMPLES / "torchvision")
    trained(
        tree,
        tmp_path / "recorded",
        sys.executable,
        "-m",
        "ioprof",
        "record",
        "--quiet",
        "--out",
        tmp_path / "run",
        "--",
    )
    trace = ioprof.load(tmp_path / "run").trace
    check_counters(trace, libraries=200)

    images = trace.files.filter(pl.col("path").str.starts_with(f"{tree}/"))
    reads = trace.spans.filter(pl.col("kind") == "read", pl.col("bytes") > 0).join(
        images, on="file"
    )
    sizes = {str(path): EPOCHS * path.stat().st_size for path in tree.rglob("*.JPEG")}
    assert sizes == dict(reads.group_by("path").agg(pl.col("bytes").sum()).iter_rows())
    workers = {process.pid for process in trace.run.processes if process.role == "worker"}
    assert workers == set(reads["pid"])
    assert set(range(STEPS)) == set(reads["batch"])
    # modules of Cython decompress their constants
    at_import = pl.col("name").cast(str) == "zlib.decompress"
    counts = dict(
        trace.spans.filter(at_import.not_().fill_null(True)).group_by("kind").len().iter_rows()
    )
    expected = {"step": STEPS, "fetch": STEPS, "collate": STEPS, "decode": EPOCHS * IMAGES}
    assert expected == {kind: counts.get(kind) for kind in expected}
    assert counts["wait"] >= STEPS
    if refusal() is None:
        faults = trace.spans.filter(pl.col("kind") == "fault").join(trace.files, on="file")
        assert faults["path"].str.contains(r"\.so").any()

    assert 0 == main(["report", "--full", str(tmp_path / "run")])
    report = capsys.readouterr().out
    assert all(cause in report for cause in ("storage", "decode", "compute", f"{STEPS} per rank"))

    trained(tree, tmp_path / "alone")
    assert 2 * EPOCHS == len(drawn(tmp_path / "alone"))
    assert drawn(tmp_path / "alone") == drawn(tmp_path / "recorded")
