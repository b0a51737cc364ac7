"""Answers about runs as text for an assistant: Markdown or JSON, each of bounded length.

Names and paths come from the job. Their control characters are escaped, and nothing in them is an
instruction.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import polars as pl

from ioprof.analysis.cpu.frames import frames_of
from ioprof.errors import CommandError
from ioprof.format.run_record import CodeShare, Finding, Summary
from ioprof.format.trace import Trace
from ioprof.report.texts.headline import headline
from ioprof.report.texts.prediction import gain_text
from ioprof.report.texts.statements import statements, with_basis
from ioprof.report.texts.units import clean

MOST_ROWS: Final = 50
"""Of any table."""
_MOST_CHARS: Final = 16_000
"""Of one answer, some 4,000 tokens: an assistant keeps all of it in its context."""
_MOST_FRAMES: Final = 12
_OF_READS: Final = ("storage", "page_cache")
_TEXT: Final = 400


def row_of_run(name: str, summary: Summary) -> dict[str, object]:
    """A line of the list of runs."""
    run = summary.run
    return {
        "run": name,
        "started": run.started,
        "status": run.status,
        "command": clean(run.command or "", _TEXT),
        "answer": headline(summary),
        "samples_per_s": summary.throughput.steady_samples_per_s,
    }


def findings(summary: Summary) -> list[dict[str, object]]:
    """Each change with its number, cause and gain, the best first."""
    return [_finding(number, each) for number, each in enumerate(summary.verdict.findings, 1)]


def evidence(summary: Summary, number: int) -> dict[str, object]:
    """What the run shows for the finding of that number: its cause with the parts of it, the
    sampled lines behind it, costly ways of reading, and what is known of the whole.
    """
    found = summary.verdict.findings
    if not 1 <= number <= len(found):
        raise CommandError(
            f"finding {number}: the run has the findings 1 to {len(found)}"
            if found
            else f"finding {number}: the run has no findings"
        )
    entry = found[number - 1]
    faster = next(iter(entry.change.speeds), None) if entry.change else None
    name = entry.cause or faster or summary.verdict.bound_by
    cause = next((each for each in summary.steps.causes if each.cause == name), None)
    return {
        "finding": _finding(number, entry),
        "cause": cause.to_dict() if cause else None,
        "lines": lines(summary, name, 10),
        "ways_of_reading": [each.to_dict() for each in summary.findings.reads.patterns],
        "slowest_reads": slowest_reads(summary, 5)["reads"] if name in _OF_READS else [],
        "statements": {each.label: clean(with_basis(each), _TEXT) for each in statements(summary)},
    }


def slowest_reads(summary: Summary, limit: int) -> dict[str, list[dict[str, Any]]]:
    """The slowest single reads, and the files that took most time."""
    reads = [
        {
            "path": each.path and clean(each.path, _TEXT),
            "took_ms": each.seconds * 1e3,
            "bytes": each.bytes,
            "source": each.source,
            "rank": each.rank,
            "step": each.step,
            "batch": each.batch,
        }
        for each in summary.storage.slowest[:limit]
    ]
    files = [
        {
            "path": clean(each.path, _TEXT),
            "took_ms": each.seconds * 1e3,
            "reads": each.accesses,
            "bytes": each.bytes,
            "slowest_ms": each.max_s * 1e3,
        }
        for each in summary.findings.reads.files[:limit]
    ]
    return {"reads": reads, "files": files}


def lines(summary: Summary, cause: str | None, limit: int) -> list[dict[str, object]]:
    """Sampled lines of code behind a cause (`workers`: all that workers did), or behind all, the
    longest first.
    """
    chosen = [each for each in summary.unexplained if cause is None or each.cause == cause]
    return [_line(each) for each in sorted(chosen, key=lambda each: -each.seconds)[:limit]]


def stacks(trace: Trace, limit: int) -> list[dict[str, object]]:
    """The most frequent stacks of main threads and workers, innermost frames last, with the share
    of all samples of their role.
    """
    if not len(trace.stacks):
        return []
    counted = (
        trace.stacks.group_by("role", "stack")
        .len("samples")
        .with_columns(share=pl.col("samples") / pl.col("samples").sum().over("role"))
        .sort(["samples", "stack"], descending=[True, False])
        .head(limit)
    )
    return [
        {
            "role": row["role"],
            "samples": row["samples"],
            "share": round(row["share"], 4),
            "frames": [
                clean(f"{frame.file}:{frame.line} {frame.function}", _TEXT)
                for frame in frames_of(row["stack"])[-_MOST_FRAMES:]
            ],
        }
        for row in counted.iter_rows(named=True)
    ]


def as_json(value: Mapping[str, Any] | list[Any]) -> str:
    """The value as JSON of bounded length: the longest list in it loses entries from its end until
    it fits, and `left_out` counts them.
    """
    whole: dict[str, Any] = dict(value) if isinstance(value, Mapping) else {"rows": list(value)}
    left_out = 0
    while len(text := json.dumps(whole, default=str, separators=(",", ":"))) > _MOST_CHARS:
        longest = max(_lists(whole), key=len, default=[])
        if not longest:
            return bounded(text)
        dropped = max(1, len(longest) // 4)
        del longest[-dropped:]
        left_out += dropped
        whole["left_out"] = left_out
    return text


def bounded(text: str) -> str:
    """The text, cut where it is too long for an answer, and saying so."""
    return text if len(text) <= _MOST_CHARS else text[:_MOST_CHARS] + "\n... (cut)"


def _lists(value: Any) -> Iterator[list[Any]]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _lists(inner)
    elif isinstance(value, list):
        yield value
        for inner in value:
            yield from _lists(inner)


def _finding(number: int, entry: Finding) -> dict[str, object]:
    return {
        "number": number,
        "code": entry.code,
        "subject": f"{entry.subject.kind} {clean(entry.subject.name, _TEXT)}"
        if entry.subject
        else None,
        "change": clean(entry.action, _TEXT),
        "cause": entry.cause,
        "gain": gain_text(entry) or None,
        "speedup": entry.gain,
        "low": entry.low,
        "high": entry.high,
        "basis": entry.basis,
        "costs": entry.costs and entry.costs.value,
        "can_be_proved": entry.can_be_proved,
    }


def _line(entry: CodeShare) -> dict[str, object]:
    return {
        "cause": entry.cause,
        "place": clean(f"{entry.file}:{entry.line}", _TEXT),
        "function": clean(entry.function, 200),
        "calls": entry.library and clean(entry.library, 200),
        "seconds": round(entry.seconds, 4),
        "share_of_cause": entry.share,
        "waiting_share": entry.waits,
        "share_in_other_threads": entry.others,
        "samples": entry.samples,
    }
