"""What a path is: a dataset, a run, what an interrupted conversion or recording left, data of other
programs; and its storage.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ioprof.converters import FORMATS, PartialOutput, detect, read_part
from ioprof.errors import CommandError, IoprofError
from ioprof.files import read_json_object
from ioprof.format.dataset import MANIFEST_NAME, Dataset
from ioprof.format.trace import Trace
from ioprof.recording.pending_run import interrupted_recording
from ioprof.recording.run_folder import MARKER
from ioprof.recording.spool import JOB
from ioprof.report.texts.units import amount, clean, count, duration
from ioprof.storage import PathStorage, describe
from ioprof.storage.wording import lines, plain, printable

_SHOWN_CLASSES: Final = 3
_SHOWN_HOSTS: Final = 4
# characters of one line: a command may be long, but no path of a damaged file fills the screen
_LONGEST: Final = 2000
_NEITHER: Final = "no dataset, run, or part of one"


@dataclass(frozen=True)
class Inspection:
    """What is known of a path."""

    facts: dict[str, object]
    """By name, in the order in which they are printed: JSON values, and under `storage` a
    `PathStorage`."""
    next_command: tuple[object, ...]
    """The command to type next."""
    words: dict[str, object] | None = None
    """What is printed of it, by label; None: the facts."""

    def to_json(self) -> str:
        """The facts as one JSON object."""
        plain_facts = {
            key: plain(value) if isinstance(value, PathStorage) else value
            for key, value in self.facts.items()
        }
        return json.dumps(printable(plain_facts))

    def lines(self) -> list[str]:
        """The facts as lines of a label and a text."""
        shown = list(_labelled(self.facts if self.words is None else self.words))
        width = max(len(label) for label, _ in shown)
        return [f"{label:<{width}}  {clean(text, _LONGEST)}" for label, text in shown]


def inspect_path(path: Path) -> Inspection:
    """Recognise a path by the files in it, and describe it. Raises `IoprofError` for a damaged
    dataset or run.
    """
    kind = next((known for name, known in KINDS.items() if (path / name).exists()), _other)
    return kind(path)


def _dataset(path: Path) -> Inspection:
    dataset = Dataset.load(path)
    image = dataset.image
    facts: dict[str, object] = {
        "kind": "dataset",
        "path": str(path),
        "name": dataset.name,
        "split": dataset.split,
        "layout": dataset.layout,
        "shards": dataset.shards,
        "image": {
            "transform": image.transform,
            "encoding": image.encoding,
            "size": image.size,
            "quality": image.quality,
        },
        "records": dataset.records,
        "bytes": dataset.bytes,
        "record_bytes_quantiles": dataset.record_bytes_quantiles,
        "classes": len(dataset.classes),
        "first_classes": [
            f"{entry.wnid} {entry.name}" for entry in dataset.classes[:_SHOWN_CLASSES]
        ],
        "quarantined": len(dataset.quarantined),
        "scale": dataset.scale,
        "shuffle_seed": dataset.shuffle_seed,
        "source": dataset.source,
        "digest": dataset.digest,
        "made_by": f"ioprof {dataset.version}",
        "storage": describe(path),
    }
    return Inspection(facts, ("ioprof", "verify", path))


def _run(path: Path) -> Inspection:
    trace = Trace.load(path)
    run = trace.run
    shown = run.to_dict()
    facts = {
        key: shown.get(key)
        for key in ("name", "status", "started", "command", "config", "device", "dataset", "clocks")
    }
    counts = {"ranks": len(trace.ranks), "processes": len(run.processes), "spans": trace.num_spans}
    return Inspection(
        {"kind": "run", "path": str(path), **facts, "hosts": len(run.hosts), **counts},
        ("ioprof", "report", path),
        _run_in_words(path, trace),
    )


def _run_in_words(path: Path, trace: Trace) -> dict[str, object]:
    run = trace.run
    hosts = ", ".join(str(host.name) for host in run.hosts[:_SHOWN_HOSTS])
    more = f" and {len(run.hosts) - _SHOWN_HOSTS} more" if len(run.hosts) > _SHOWN_HOSTS else ""
    sizes = [each.stat().st_size for each in path.iterdir() if each.is_file()]
    start_ns, end_ns = (run.times.start_ns, run.times.end_ns) if run.times else (None, None)
    took = None if start_ns is None or end_ns is None else duration((end_ns - start_ns) / 1e9)
    status = run.status or "unknown"
    ended = "" if run.exit_code is None else f", exit code {run.exit_code}"
    settings = {
        key: value
        for key, value in run.config.to_dict().items()
        if value not in (None, "") and not isinstance(value, dict | list)
    }
    facts = {
        "kind": "a run of ioprof",
        "path": str(path),
        "command": run.command,
        "in": run.directory,
        "status": f"{status}{ended}",
        "started": run.started,
        "took": took,
        "on": f"{hosts}{more}",
        "ranks": len(trace.ranks),
        "settings": ", ".join(
            f"{key.replace('_', ' ')} {value}" for key, value in settings.items()
        ),
        "recorded": f"{count(trace.num_spans)} spans of {count(len(run.processes))} processes",
        "size": f"{amount(sum(sizes))} in {len(sizes)} files",
    }
    return {key: value for key, value in facts.items() if value not in (None, "")}


def _part(path: Path) -> Inspection:
    part = read_part(path)
    facts = {
        "part": str(part.part),
        "images": len(part.places),
        "of_images": part.total,
        "layout_asked_for": part.options.layout,
    }
    whole = path.with_name(path.name.rpartition(".part-")[0])
    shown = {"kind": "part of a dataset", "path": str(path), **facts, "source": part.source}
    return Inspection(shown, ("ioprof", "convert", "merge", whole))


def _half_made(path: Path) -> Inspection:
    work = PartialOutput(path)
    job = work.read_job() or {}
    facts = {
        key: job[key] for key in ("layout", "image", "split", "part") if job.get(key) is not None
    }
    kind = "an unfinished conversion, running or killed"
    shown = {"kind": kind, "path": str(path), "images_done": work.images_done, **facts}
    return Inspection(shown, ("ioprof", "convert", "imagenet", "--help"))


def _unfinished(path: Path) -> Inspection:
    """The folder of a run that is being recorded, or whose ioprof was killed; or the spool that its
    processes write to.
    """
    try:
        found = interrupted_recording(path)
        spool, run = found.spool, {**found.run.to_dict(), "out": found.out and str(found.out)}
        state = "not being recorded any more; its run folder can be made"
    except CommandError as error:
        spool, run, state = path, read_json_object(path / JOB) or {}, str(error)
    kind = (
        "an unfinished recording (a spool)"
        if (path / JOB).exists()
        else "the folder of an unfinished run"
    )
    facts = {
        key: run[key] for key in ("name", "command", "started", "out") if run.get(key) is not None
    }
    shown = {
        "kind": kind,
        "path": str(path),
        "state": state,
        "spool": str(spool),
        **facts,
        "processes": _num_captures(spool),
    }
    return Inspection(shown, ("ioprof", "gather", path))


def _num_captures(spool: Path) -> int:
    return sum(1 for _ in spool.glob("*.ring"))


def _job(path: Path) -> Inspection:
    """Both a spool and an unfinished dataset have a job.json."""
    return (
        _unfinished(path)
        if "capture" in (read_json_object(path / JOB) or {}) or _num_captures(path)
        else _half_made(path)
    )


def _other(path: Path) -> Inspection:
    storage = describe(path)
    if (found := _foreign(path)) is not None:
        return Inspection(
            {**found, "storage": storage}, ("ioprof", "convert", "imagenet", path, "DATASET")
        )
    kind = f"a folder, {_NEITHER}" if path.is_dir() else "a file"
    return Inspection(
        {"kind": kind, "path": str(path), "storage": storage}, ("ioprof", "doctor", path)
    )


def _foreign(path: Path) -> dict[str, object] | None:
    """Data of other programs; None if it is none, or cannot be read as such."""
    try:
        kind, source = detect(path, "train")
    except IoprofError:
        return None
    images = source.images
    size = (
        images.num_bytes
        if images[0].size is not None
        else round(source.mean_image_bytes * len(images))
    )
    return {
        "kind": "data of another program" if kind not in ("tree", "tars", "kaggle") else "images",
        "path": str(path),
        "format": FORMATS[kind],
        "description": source.description,
        "records": len(images),
        ("bytes" if images.kind == "file" else "bytes_with_framing")
        if images.num_bytes
        else "bytes_estimated": size,
        "classes": len(source.wnids),
        "first_classes": [
            f"{wnid} {source.class_names.get(wnid, '')}".strip()
            for wnid in source.wnids[:_SHOWN_CLASSES]
        ],
        "left_out": len(source.refused),
    }


KINDS: Final[dict[str, Callable[[Path], Inspection]]] = {
    MANIFEST_NAME: _dataset,
    "run.json": _run,
    MARKER: _unfinished,
    "part.json": _part,
    JOB: _job,
}
"""The file by which a kind of folder is recognised → the function that describes it."""


def _labelled(facts: dict[str, object]) -> Iterator[tuple[str, str]]:
    for key, value in facts.items():
        yield from (
            lines(value)
            if isinstance(value, PathStorage)
            else [(key.replace("_", " "), _shown(value))]
        )


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(
            f"{key} {_shown(inner)}" for key, inner in value.items() if inner is not None
        )
    if isinstance(value, list):
        return (
            " ".join(map(_shown, value))
            if all(isinstance(entry, str) for entry in value)
            else json.dumps(value)
        )
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "-" if value is None else " ".join(str(value).split())
