"""What is not the same in two runs besides their times: command, settings, versions, host, data."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final

from ioprof.analysis.run import Run
from ioprof.format.run_record import DatasetRecord, RunRecord, SourceRecord

_LEAST_CACHED: Final = 0.05
"""Difference of the share of bytes from the page cache from which on that is a change: libraries
and other small files that are cached or not make up less."""


@dataclass(frozen=True)
class Change:
    """One thing that differs. An empty text: the run does not have it."""

    what: str
    """`arguments`, `commit`, `uncommitted FILE`, a setting, a package, a variable, `host`,
    `dataset`, or `page cache`."""
    first: str
    other: str


def changed_setting(first: Run, other: Run) -> tuple[Change, ...]:
    """All that was recorded of the setting and differs, the command line first."""
    before, after = first.trace.run, other.trace.run
    tables = (
        (_settings(before), _settings(after)),
        (before.versions, after.versions),
        (before.environment, after.environment),
        ({"host": _hosts(before)}, {"host": _hosts(after)}),
        ({"dataset": _dataset(before.dataset)}, {"dataset": _dataset(after.dataset)}),
        ({"folder": before.directory}, {"folder": after.directory}),
    )
    found = [*_arguments(before.command, after.command), *_source(before.source, after.source)]
    for old, new in tables:
        found += _differing(old, new)
    return (*found, *_cache(first, other))


def _arguments(first: str | None, other: str | None) -> Iterator[Change]:
    before, after = _words(first), _words(other)
    for kind, start, end, other_start, other_end in SequenceMatcher(
        a=before, b=after, autojunk=False
    ).get_opcodes():
        if kind != "equal":
            is_value = start > 0 and before[start - 1].startswith("--")
            name = [before[start - 1]] if is_value else []  # of an option, beside its value
            yield Change(
                "arguments",
                shlex.join([*name, *before[start:end]]) if start < end else "",
                shlex.join([*name, *after[other_start:other_end]])
                if other_start < other_end
                else "",
            )


def _source(first: SourceRecord | None, other: SourceRecord | None) -> Iterator[Change]:
    """Commit and branch, then each uncommitted file, or script outside of a repository, whose
    content differs. What is not known of one run is no change.
    """
    if first is None or other is None:
        return
    if first.commit and other.commit and first.commit != other.commit:
        yield Change("commit", *(_commit(each) for each in (first, other)))
    is_known = None not in (first.changed, other.changed) or not (first.commit or other.commit)
    for name in dict.fromkeys((*first.files, *other.files)) if is_known else ():
        old, new = (_content(each, name) for each in (first, other))
        if old != new:
            yield Change(f"uncommitted {name}" if first.commit else name, old, new)


def _commit(source: SourceRecord) -> str:
    return f"{(source.commit or '')[:12]}{f' ({source.branch})' if source.branch else ''}"


def _content(source: SourceRecord, name: str) -> str:
    """What distinguishes a file's content; empty: as committed."""
    return (source.files[name] or "removed or large") if name in source.files else ""


def _words(command: str | None) -> list[str]:
    try:
        return shlex.split(command or "")
    except ValueError:
        return [command or ""]


def _settings(run: RunRecord) -> dict[str, object]:
    return {
        key.replace("_", " "): value
        for key, value in run.config.to_dict().items()
        if not isinstance(value, dict | list)
    }


def _hosts(run: RunRecord) -> str:
    return ", ".join(sorted(str(host.name) for host in run.hosts))


def _dataset(record: DatasetRecord | None) -> str:
    if record is None:
        return ""
    words = (record.name, record.layout, record.image.transform if record.image else None)
    return " ".join(str(word) for word in words if word)


def _differing(first: Mapping[str, object], other: Mapping[str, object]) -> Iterator[Change]:
    for name in dict.fromkeys((*first, *other)):
        old, new = first.get(name), other.get(name)
        if old != new and (old or new):
            yield Change(name, "" if old is None else str(old), "" if new is None else str(new))


def _cache(first: Run, other: Run) -> Iterator[Change]:
    shares = []
    for storage in (first.summary.storage, other.summary.storage):
        if not storage.bytes:
            return
        shares.append(storage.bytes_from_cache / storage.bytes)
    if abs(shares[0] - shares[1]) >= _LEAST_CACHED:
        old, new = (f"{share:.0%} of the bytes read" for share in shares)
        yield Change("page cache", old, new)
