"""Generated Kineto files in the formats of its two writers and several versions."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from ioprof.clock import Anchor

BASE_NS: Final = 1_790_857_026_000_000_000
"""Base of the times in a file: a multiple of 7,889,238 s."""
MONO_NS: Final = 5_000_000_000
"""Monotonic time at `WALL_NS`."""
WALL_NS: Final = BASE_NS + 4_407_733_679_047_494
ANCHOR: Final = Anchor(MONO_NS - 20, WALL_NS, MONO_NS + 20)


def microseconds(at_ns: int) -> str:
    """A wall clock time since `BASE_NS`, formatted like Kineto does."""
    return f"{at_ns // 1000}.{at_ns % 1000:03d}"


def event(
    cat: str, name: str, at_ns: int, dur_ns: int, *, device: Any = 0, stream: Any = 7, **args: Any
) -> str:
    """An event of Kineto in C++ at the monotonic time `at_ns`."""
    inside = ", ".join(
        f'"{key.replace("_", " ")}": {json.dumps(value)}' for key, value in args.items()
    )
    return (
        f'\n  {{\n    "ph": "X",\n    "cat": "{cat}",\n    "name": {json.dumps(name)},\n    "pid":'
        f' {json.dumps(device)},\n    "tid": {json.dumps(stream)},\n    "ts":'
        f' {microseconds(at_ns - MONO_NS + WALL_NS - BASE_NS)},\n    "dur":'
        f' {microseconds(dur_ns)}\n    ,\n    "args": {{\n      {inside}\n    }}\n  }}'
    )


def launch(at_ns: int, correlation: int, dur_ns: int = 5_000) -> str:
    """A call that launches work on the device."""
    return event(
        "cuda_runtime",
        "cudaLaunchKernel",
        at_ns,
        dur_ns,
        device=41,
        stream=41,
        cbid=211,
        correlation=correlation,
    )


def document(
    *events: str,
    before: str = "",
    after: str = "",
    base: str | None = f'"baseTimeNanoseconds": {BASE_NS},',
) -> str:
    """A complete file."""
    return (
        f'{{\n  "schemaVersion": 1,\n  "deviceProperties": [],\n  {before}\n  "displayTimeUnit":'
        f' "ms",\n  {base or ""}\n  "traceEvents": [{",".join(events)}\n  ], "traceName":'
        f' "x"{after} }}\n'
    )


def meta(
    marks: list[tuple[int, int]], anchors: list[Anchor] | None = None, **other: Any
) -> dict[str, Any]:
    """The metadata that the session writes, for a window over all the marks."""
    about = {
        "host": "node1",
        "pid": 41,
        "rank": 3,
        "started_ns": marks[0][1],
        "stopped_ns": marks[-1][1],
        "cost_ns": 7,
    }
    return {
        **about,
        "marks": marks,
        "anchors": [asdict(anchor) for anchor in anchors or [ANCHOR]],
        **other,
    }


def write(
    folder: Path, text: str, about: Any = None, name: str = "kineto-node1-41-0"
) -> tuple[Path, Path | None]:
    """Write a file and its metadata; returns their paths."""
    path = folder / f"{name}.json"
    path.write_text(text)
    if about is None:
        return path, None
    meta_path = folder / f"{name}.meta.json"
    meta_path.write_text(json.dumps(about))
    return path, meta_path
