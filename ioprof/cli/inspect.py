"""`ioprof inspect`: what a folder is that ioprof made."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ioprof.cli.console import next_command, output
from ioprof.converters import HalfMade, read_part
from ioprof.dataset import MANIFEST_NAME, Dataset
from ioprof.errors import CommandError
from ioprof.trace import Trace

_SHOWN_CLASSES: Final = 3


def inspect(
    path: Annotated[Path, typer.Argument(help="A dataset, a part of one, what a killed conversion left, or a run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Say what a dataset or a run is, by what its manifest says; to check it against the data: ioprof verify."""
    kind = next((name for name in KINDS if (path / name).exists()), None)
    if kind is None:
        what = f"neither a dataset ({MANIFEST_NAME}) nor a run (run.json)" if path.is_dir() else "no such folder"
        raise CommandError(f"{path}: {what}; make one with: ioprof convert imagenet SOURCE DATASET, or ioprof run --out RUN")
    facts, following = KINDS[kind](path)
    if as_json:
        output.print_json(json.dumps(facts))
        return
    width = max(map(len, facts))
    for key, value in facts.items():
        output.print(f"{key.replace('_', ' '):<{width}}  {_shown(value)}", markup=False)
    next_command(*following)


Facts = tuple[dict[str, Any], tuple[object, ...]]
"""What a folder is, and the command to type next."""


def _dataset(path: Path) -> Facts:
    dataset = Dataset.load(path)
    image = dataset.image
    return {
        "kind": "dataset",
        "path": str(path),
        "name": dataset.name,
        "split": dataset.split,
        "layout": dataset.layout,
        "shards": dataset.shards,
        "image": {"transform": image.transform, "encoding": image.encoding, "size": image.size, "quality": image.quality},
        "records": dataset.records,
        "bytes": dataset.bytes,
        "record_bytes_quantiles": dataset.record_bytes_quantiles,
        "classes": len(dataset.classes),
        "first_classes": [f"{entry.wnid} {entry.name}" for entry in dataset.classes[:_SHOWN_CLASSES]],
        "quarantined": len(dataset.quarantined),
        "scale": dataset.scale,
        "shuffle_seed": dataset.shuffle_seed,
        "source": dataset.source,
        "digest": dataset.digest,
        "made_by": f"ioprof {dataset.version}",
    }, ("ioprof", "verify", path)


def _run(path: Path) -> Facts:
    trace = Trace.load(path)
    run = trace.run
    facts = {key: run.get(key) for key in ("name", "status", "started", "command", "config", "device", "dataset", "clocks")}
    counts = {"ranks": len(trace.ranks), "processes": len(run.get("processes") or []), "spans": trace.spans.height}
    return {"kind": "run", "path": str(path), **facts, "hosts": len(run.get("hosts") or []), **counts}, ("ioprof", "report", path)


def _part(path: Path) -> Facts:
    part = read_part(path)
    facts = {"part": str(part.part), "images": len(part.places), "of_images": part.total, "layout_asked_for": part.options.layout}
    whole = path.with_name(path.name.rpartition(".part-")[0])
    return {"kind": "part of a dataset", "path": str(path), **facts, "source": part.source}, ("ioprof", "convert", "merge", whole)


def _half_made(path: Path) -> Facts:
    work = HalfMade(path)
    job = work.job() or {}
    facts = {key: job.get(key) for key in ("layout", "image", "split", "part") if job.get(key) is not None}
    kind = "what a conversion has done that is at work or was killed"
    following = ("ioprof", "convert", "imagenet", "--help")
    return {"kind": kind, "path": str(path), "images_done": work.images_done, **facts}, following


KINDS: Final[dict[str, Callable[[Path], Facts]]] = {
    MANIFEST_NAME: _dataset,
    "run.json": _run,
    "part.json": _part,
    "job.json": _half_made,
}
"""The file that a folder is known by → what there is to say about it."""


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(inner)}" for key, inner in value.items() if inner is not None)
    if isinstance(value, list):
        return " ".join(map(_shown, value)) if all(isinstance(entry, str) for entry in value) else json.dumps(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "-" if value is None else " ".join(str(value).split())
