"""Stack samples in the format of speedscope (https://www.speedscope.app/file-format-schema.json),
one profile per thread.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from ioprof.errors import RunError
from ioprof.files import write_atomically
from ioprof.format.schema import HOLDER
from ioprof.format.trace import Trace
from ioprof.interchange.exported import Exported

SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"
_MOST_PERIODS: Final = 3
"""A sample stands for the time until the next one, but for no more than so many times the median of
these times."""


def write_speedscope(trace: Trace, path: Path, name: str) -> Exported:
    """Write the stack samples of a run to `path`, whole or not at all. `RunError` where there are
    none.
    """
    if trace.stacks.is_empty():
        raise RunError(
            f"{name}: has no stack samples; record the job with: ioprof record --stacks -- COMMAND"
        )
    write_atomically(path, json.dumps(document(trace, name), separators=(",", ":")) + "\n")
    return Exported({}, samples=len(trace.stacks))


def document(trace: Trace, name: str) -> dict[str, Any]:
    """The file as a JSON object. Weights are nanoseconds; values count from the run's zero."""
    numbers: dict[str, int] = {}
    texts = trace.stacks["stack"].cast(pl.String)
    stacks = {
        text: [numbers.setdefault(frame, len(numbers)) for frame in text.split("\n")]
        for text in texts.unique(maintain_order=True)
    }
    profiles = list(_profiles(trace, stacks))
    return {
        "$schema": SCHEMA,
        "shared": {"frames": [_frame(text) for text in numbers]},
        "profiles": profiles,
        "name": name,
        "activeProfileIndex": 0,
        "exporter": "ioprof",
    }


def _frame(text: str) -> dict[str, Any]:
    file, line, function = text.rsplit(":", 2)
    return {"name": function, "file": file, **({"line": int(line)} if int(line) > 0 else {})}


def _profiles(trace: Trace, stacks: dict[str, list[int]]) -> Iterator[dict[str, Any]]:
    order = trace.stacks.with_columns(pl.col("stack", "role", "host").cast(pl.String)).sort(
        "rank", "role", "pid", "time_ns", nulls_last=True
    )
    keys = (
        "rank",
        "role",
        "host",
        "pid",
        "tid",
        pl.col("stack").str.starts_with(f"{HOLDER}:").alias("is_holder"),
    )
    for (rank, role, host, pid, tid, is_holder), samples in order.group_by(
        *keys, maintain_order=True
    ):
        times = samples["time_ns"].to_numpy()
        gaps = np.diff(times)
        longest = int(np.median(gaps) * _MOST_PERIODS) if len(gaps) else 0
        weights = [*np.minimum(gaps, longest).tolist(), longest // _MOST_PERIODS]
        who = (
            f"process {pid}"
            if rank is None
            else f"rank {rank}, worker process {pid}"
            if role == "worker"
            else f"rank {rank}"
        )
        if tid != pid:
            who += f", thread {tid}" + (" where it held the interpreter lock" if is_holder else "")
        yield {
            "type": "sampled",
            "name": f"{who} on {host}",
            "unit": "nanoseconds",
            "startValue": int(times[0]),
            "endValue": int(times[0]) + sum(weights),
            "samples": [stacks[text] for text in samples["stack"]],
            "weights": weights,
        }
