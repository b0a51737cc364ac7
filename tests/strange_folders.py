"""Random folders of a user: names that ioprof gives, files that look like its own, links, pipes;
and commands on them."""

import json
import os
import random
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ioprof.format.schema import RUN_SCHEMA

NAMES: Final = (
    "job.json",
    "recording.json",
    "run.json",
    "dataset.json",
    "staged.json",
    "job.log",
    "spans.parquet",
    "report.html",
    "summary.json",
    "steps.parquet",
    "x.ring",
    "vm-1-2.ring",
    "facts-vm-1.jsonl",
    "kept.json",
    "config.json",
    "progress",
    "train.txt",
    "train",
    "a b",
    "notes.txt",
    "run",
    "run.parts",
    "0-vm",
    "ioprof-a1b2c3d4",
    "ioprof-job-a1b2c3d4",
    ".run.partial",
    ".ioprof-demo",
    "journal",
    "lock",
    "step-1",
    "step-2.unfinished",
    ".run.json.7.tmp",
    "synthetic.json",
    "data",
    "é",
    "trace.json",
)
"""Of entries of folders; each may be a file, a folder, a link or a pipe."""
_SPOOL_NAMES: Final = ("ioprof-a1b2c3d4", "ioprof-e5f6g7h8")
_MOST_DEPTH: Final = 3


@dataclass(frozen=True)
class Parts:
    """Genuine folders and files, copies of which are put among the others."""

    run: Path
    dataset: Path
    trace: Path


def fill(folder: Path, parts: Parts, choice: random.Random, depth: int = 0) -> None:
    """Make random entries in a folder that is there."""
    for name in choice.sample(NAMES, choice.randint(1, 7)):
        _make(folder / name, parts, choice, depth)
    if choice.random() < 0.4:
        _make_pair(folder, choice)


def _make(path: Path, parts: Parts, choice: random.Random, depth: int) -> None:
    kind = choice.choices(
        ("json", "text", "folder", "link", "pipe", "run", "dataset", "trace"),
        (8, 3, 6, 3, 1, 2, 2, 1),
    )[0]
    if kind == "folder" and depth < _MOST_DEPTH:
        path.mkdir()
        fill(path, parts, choice, depth + 1)
    elif kind == "link":
        path.symlink_to(
            choice.choice(
                (
                    ".",
                    "..",
                    "/dev/zero",
                    "nowhere",
                    choice.choice(NAMES),
                    str(parts.run),
                    str(parts.trace),
                )
            )
        )
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind in ("run", "dataset"):
        shutil.copytree(parts.run if kind == "run" else parts.dataset, path)
        if choice.random() < 0.5:
            (path / choice.choice(("notes.txt", "mine"))).write_text("mine")
    elif kind == "trace":
        shutil.copy(parts.trace, path)
    elif kind == "json":
        path.write_text(json.dumps(_keys(path.parent, choice)))
    else:
        path.write_text(
            choice.choice(
                ("", "{", "mine\n", "ioprof run: output of the job\n", "train/a.JPEG 0\n" * 3)
            )
        )


def _keys(folder: Path, choice: random.Random) -> Any:
    """JSON that may be that of a spool, a marker, a run, a dataset, or anything."""
    value: Callable[[], Any] = lambda: choice.choice(  # noqa: E731
        (
            None,
            0,
            -1,
            1.5,
            "",
            "x",
            [],
            {},
            [1, 1],
            str(folder),
            f"{folder}/{choice.choice(NAMES)}",
            "/",
            "..",
            RUN_SCHEMA,
            "a" * 64,
        )
    )
    keys = (
        "launcher",
        "out",
        "spool",
        "host",
        "token",
        "uid",
        "schema",
        "removing",
        "done",
        "format",
        "digest",
        "layout",
        "keep",
        "boot",
    )
    found = {name: value() for name in choice.sample(keys, choice.randint(0, 9))}
    return choice.choice((found, found, found, found, [], 7, "text", {"learning_rate": 0.1}))


def _make_pair(folder: Path, choice: random.Random) -> None:
    """A run folder and a spool that name one another; whether their tokens are the same is random.
    No inode is right."""
    spool, out = (
        folder / choice.choice((*_SPOOL_NAMES, "mine")),
        folder / choice.choice(("out", "experiment")),
    )
    token = secrets.token_hex(32)
    other = choice.choice((token, token, None, secrets.token_hex(32)))
    for each in (spool, out):
        if each.is_symlink() or not each.is_dir():
            each.unlink(missing_ok=True)
            each.mkdir(mode=choice.choice((0o700, 0o700, 0o755, 0o777)))
    inode = spool.stat().st_ino + 1
    origin = choice.choice(
        (None, {"token": token, "uid": os.geteuid(), "inode": inode}, {"token": token})
    )
    named = str(choice.choice((out, out, folder, spool, Path("/"), folder / "run")))
    job = {"name": "x", "status": "running", "launcher": None, "out": named, "spool": origin}
    marker = {
        "spool": str(choice.choice((spool, spool, folder, out))),
        "host": os.uname().nodename,
        "token": other,
        "uid": os.geteuid(),
    }
    for path, keys in ((spool / "job.json", job), (out / "recording.json", marker)):
        if not os.path.lexists(path):
            path.write_text(json.dumps(keys))
    for name in choice.sample(
        ("run.json", "report.html", "weights.pt", "spans.parquet"), choice.randint(0, 2)
    ):
        if not os.path.lexists(out / name):
            (out / name).write_text("mine")
    if choice.random() < 0.3 and not os.path.lexists(spool / "facts-vm-1.jsonl"):
        (spool / "facts-vm-1.jsonl").symlink_to(out / "report.html")
    if choice.random() < 0.3 and not os.path.lexists(spool / "kept.json"):
        (spool / "kept.json").write_text(
            json.dumps({"format": "ioprof.spool.kept/1", "removing": ["job.json", "weights.pt"]})
        )


def command(folder: Path, choice: random.Random) -> list[str]:
    """A command on entries of the folder, and what it is to write, which may be there: there is no
    --force."""
    there = [
        folder,
        *(path for path in folder.rglob("*") if path.is_dir() or choice.random() < 0.1),
    ]
    pick: Callable[[], str] = lambda: str(choice.choice(there))  # noqa: E731
    out: Callable[[], str] = lambda: choice.choice(  # noqa: E731
        (str(folder / "new"), str(folder / "new"), pick())
    )
    weights = {
        "gather": 40,
        "gather to": 20,
        "gather parts": 5,
        "watch": 10,
        "report": 8,
        "report to": 4,
        "import": 4,
        "convert": 1,
        "stage": 8,
        "snapshot": 8,
        "snapshot to": 5,
        "inspect": 15,
        "verify": 2,
        "compare": 4,
        "demo": 8,
    }
    (named,) = choice.choices(list(weights), list(weights.values()))
    return {
        "gather": ["gather", pick()],
        "gather to": ["gather", pick(), "--out", out()],
        "gather parts": ["gather", pick(), pick()],
        "watch": ["watch", pick(), "--once"],
        "report": ["report", pick()],
        "report to": ["report", pick(), "--html", out()],
        "import": [
            "import",
            "kineto",
            choice.choice((pick(), str(folder / "trace.json"))),
            "--out",
            out(),
        ],
        "convert": ["convert", "imagenet", pick(), out(), "--workers", "1", "--layout", "files"],
        "stage": ["stage", pick(), pick()],
        "snapshot": ["snapshot", pick()],
        "snapshot to": ["snapshot", pick(), "--out", out()],
        "inspect": ["inspect", pick()],
        "verify": ["verify", pick(), "--workers", "1"],
        "compare": ["compare", pick(), pick()],
        "demo": ["demo", "--out", out()],
    }[named]
