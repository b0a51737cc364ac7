"""The NCCL profiler plugin in real jobs: `make test-gpu`."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ioprof.format.collective_format import FUNCTIONS
from ioprof.ingest import kineto, read_spool
from ioprof.ingest.collectives.files import read_collective_files
from ioprof.instrument import preload

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(
        preload.nccl_plugin() is None, reason="the plugin for NCCL is not built: no C compiler"
    ),
]

PROGRAM = Path(__file__).parents[1] / "programs" / "exchange_on_gpus.py"
STEPS, LATE_NS, BYTES = 30, 50_000_000, 2048 * 2048 * 4
SLACK_NS = 100_000
"""Between two clocks of one GPU: that of Kineto, and NCCL's timer as it is converted."""


def _nccl_version() -> tuple[int, ...]:
    try:
        return tuple(torch.cuda.nccl.version())
    except AttributeError:  # a torch without NCCL
        return ()


needs_interface = pytest.mark.skipif(
    _nccl_version()[:2] < (2, 26), reason="no NCCL, or one before 2.26, which reports no kernels"
)
needs_two = pytest.mark.skipif(
    torch.cuda.device_count() < 2,
    reason="one GPU: NCCL makes collectives of one rank without a kernel",
)


def recorded(spool: Path, ranks: int, window: str) -> None:
    """Run the program with so many ranks, and leave what it recorded in the spool."""
    spool.mkdir()
    variables = preload.environment(
        spool, {**os.environ, "IOPROF_GPU_WINDOW": window, "IOPROF_NCCL": "on"}, hooks=True
    )
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        PROGRAM,
        str(STEPS),
    ]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)
    assert 0 == ended.returncode, ended.stdout + ended.stderr


@needs_interface
def test_nccl_loads_the_plugin(tmp_path: Path) -> None:
    """In a job of one rank, whose collectives are copies: the communicator is known, and no
    operation has times."""
    recorded(tmp_path / "spool", 1, "off")
    (found,) = read_collective_files(tmp_path / "spool")
    assert (1, 0) == (
        found.communicators[0].ranks if found.api >= 4 else 1,
        found.communicators[0].rank if found.api >= 4 else 0,
    )
    assert not +found.damage


@needs_interface
@needs_two
def test_collectives_are_recorded_without_cupti(tmp_path: Path) -> None:
    """Every all-reduce of each rank, with its bytes; rank 0 waits 50 ms for rank 1."""
    recorded(tmp_path / "spool", 2, "off")
    trace = read_spool(tmp_path / "spool")
    spans = trace.spans.filter(kind="comm", bytes=BYTES).sort("rank", "start_ns")
    assert {0: STEPS, 1: STEPS} == dict(spans["rank"].value_counts().iter_rows())
    took = {
        rank: spans.filter(rank=rank).select(
            (spans.filter(rank=rank)["end_ns"] - spans.filter(rank=rank)["start_ns"]).median()
        )
        for rank in range(2)
    }
    waited = took[0].item() - took[1].item()
    assert LATE_NS * 0.8 < waited < LATE_NS * 1.5


@needs_interface
@needs_two
def test_times_agree_with_kineto(tmp_path: Path) -> None:
    """Starts and ends of the kernels, where both saw them; in the trace each collective is there
    once."""
    spool = tmp_path / "spool"
    recorded(spool, 2, "all")
    for file in read_collective_files(spool):
        own = file.operations.filter(bytes=BYTES, function=FUNCTIONS.index("AllReduce")).drop_nulls(
            "end_ns"
        )
        windows = [
            window.spans.filter(kind="comm")
            for window in kineto.read_windows(spool)
            if window.pid == file.pid
        ]
        starts, ends = (
            np.concatenate([spans[name].to_numpy() for spans in windows])
            for name in ("start_ns", "end_ns")
        )
        for name, seen in (("start_ns", starts), ("end_ns", ends)):
            nearest = np.abs(own[name].to_numpy()[:, None] - seen[None, :]).min(axis=1)
            assert np.median(nearest) < SLACK_NS
    trace = read_spool(spool)
    per_rank = dict(trace.spans.filter(kind="comm", bytes=BYTES)["rank"].value_counts().iter_rows())
    assert {0: STEPS, 1: STEPS} == per_rank
    assert all(each.seen_by_others for each in trace.run.capture.collectives)
