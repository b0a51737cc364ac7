"""Stack samples in the format of speedscope (https://www.speedscope.app/file-format-schema.json):
first what the steps waited for, by cause, then one profile per thread.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import polars as pl

from ioprof.errors import RunError
from ioprof.files import write_atomically
from ioprof.format.trace import Trace
from ioprof.interchange.exported import Exported
from ioprof.interchange.stacks import IS_HOLDER, durations

SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"
WAITED_FOR: Final = "what the steps waited for"
"""The name of the first profile."""


def write_speedscope(trace: Trace, path: Path, name: str, waited: pl.DataFrame) -> Exported:
    """Write the stack samples of a run to `path`, whole or not at all. `RunError` where there are
    none.

    `waited` are columns `cause stack seconds`: the time of each cause by the stacks of what was
    waited for.
    """
    if trace.stacks.is_empty():
        raise RunError(
            f"{name}: has no stack samples; record the job with: ioprof record --stacks -- COMMAND"
        )
    write_atomically(path, json.dumps(document(trace, name, waited), separators=(",", ":")) + "\n")
    return Exported({}, samples=len(trace.stacks))


def document(trace: Trace, name: str, waited: pl.DataFrame) -> dict[str, Any]:
    """The file as a JSON object. Weights are nanoseconds; values count from the run's zero."""
    numbers: dict[str, int] = {}
    texts = pl.concat([column["stack"].cast(pl.String) for column in (trace.stacks, waited)])
    stacks = {
        text: [numbers.setdefault(frame, len(numbers)) for frame in text.split("\n")]
        for text in texts.unique(maintain_order=True)
    }
    causes = {cause: numbers.setdefault(f":0:{cause}", len(numbers)) for cause in waited["cause"]}
    profiles = [*_waited_for(waited, causes, stacks), *_profiles(trace, stacks)]
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
    place = {"file": file} if file else {}
    return {"name": function, **place, **({"line": int(line)} if int(line) > 0 else {})}


def _waited_for(
    waited: pl.DataFrame, causes: dict[str, int], stacks: dict[str, list[int]]
) -> Iterator[dict[str, Any]]:
    """The profile that speedscope opens: the causes, and below each the code behind it."""
    if waited.is_empty():
        return
    weights = [round(seconds * 1e9) for seconds in waited["seconds"]]
    yield {
        "type": "sampled",
        "name": WAITED_FOR,
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": [
            [causes[cause], *stacks[stack]]
            for cause, stack in zip(waited["cause"], waited["stack"].cast(pl.String), strict=True)
        ],
        "weights": weights,
    }


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
        IS_HOLDER,
    )
    for (rank, role, host, pid, tid, is_holder), samples in order.group_by(
        *keys, maintain_order=True
    ):
        times = samples["time_ns"].to_numpy()
        weights = durations(times)
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
