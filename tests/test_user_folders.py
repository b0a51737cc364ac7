"""Folders of a user are not changed by commands that were not asked to write there: random folders, with names as ioprof has them.

IOPROF_USER_FOLDERS=10000 makes so many of them.
"""

import contextlib
import io
import json
import os
import random
import secrets
import shutil
from pathlib import Path
from typing import Any, Final

import pytest
from test_harmless import photograph

from ioprof.cli import main
from ioprof.errors import IoprofError
from ioprof.jobs.demo import _prepare
from ioprof.watching.target import targets

COUNT: Final = int(os.environ.get("IOPROF_USER_FOLDERS", "60"))
NAMES: Final = (
    "job.json", "recording.json", "run.json", "summary.json", "analysis.json", "spans.parquet", "steps.parquet", "report.html",
    "job.log", "host-1-2.ring", "facts-host-1.jsonl", "kept.json", "config.json", "progress", "dataset.json", "staged.json",
    "journal", "train.txt",
    ".ioprof-demo", "step-3", "step-4.unfinished", ".run.json.7.tmp", "ioprof-abcdefgh", "run.parts", "0-node1", "train", "images",
    "notes.txt", "model.pt", "data.bin", "a.JPEG", "trace.json", "experiment", "0abc",
)  # fmt: skip
COMMANDS: Final = ("gather", "report", "inspect", "verify", "snapshot", "compare", "convert", "stage", "import", "export", "whatif")


def some_json(random: random.Random, places: list[Path]) -> Any:
    """What a description of ioprof may look like, or of another program."""
    place = str(random.choice(places))
    uid, token = os.getuid(), random.choice(["", "0" * 64, secrets.token_hex(32)])
    return random.choice(
        [
            {"learning_rate": 0.1},
            {"spool": place, "host": os.uname().nodename, "token": token},
            {"schema": "ioprof.run/1", "name": "run", "out": place, "launcher": [1, 1], "status": "running"},
            {"schema": "ioprof.run/2", "out": place, "origin": {"token": token, "uid": uid, "inode": random.randrange(1 << 20)}},
            {"schema": "ioprof.dataset/1", "split": "train", "layout": "files", "records": 3},
            {"schema": "ioprof.staged/1", "keep": False, "boot": "x", "digest": "y"},
            [1, 2, 3],
            None,
        ]
    )


def fill(folder: Path, random: random.Random, places: list[Path], depth: int = 0) -> None:
    """Put files, folders, links and pipes of random names into a folder."""
    for name in random.sample(NAMES, random.randrange(1, 7)):
        path = folder / name
        kind = random.choice(["json", "json", "bytes", "folder", "link", "pipe", "empty"])
        if kind == "json":
            path.write_text(json.dumps(some_json(random, places)))
        elif kind == "bytes":
            path.write_bytes(random.randbytes(random.randrange(2000)))
        elif kind == "folder" and depth < 2:
            path.mkdir()
            places.append(path)
            fill(path, random, places, depth + 1)
        elif kind == "link":
            path.symlink_to(random.choice([*places, Path("/dev/null"), Path("nowhere")]))
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.touch()


def command_line(command: str, folder: Path, elsewhere: Path) -> list[str]:
    """A command that is asked to write only below `elsewhere`, if at all."""
    return {
        "gather": ["gather", str(folder)],
        "snapshot": ["snapshot", str(folder), "--out", str(elsewhere / "snapshot")],
        "compare": ["compare", str(folder), str(folder)],
        "convert": ["convert", "imagenet", str(folder), str(elsewhere / "data"), "--workers", "1"],
        "stage": ["stage", str(folder), str(elsewhere)],
        "import": ["import", "kineto", str(folder), "--out", str(elsewhere / "imported")],
        "export": ["export", str(folder), "--format", "perfetto", "--out", str(elsewhere / "trace")],
        "whatif": ["whatif", str(folder), "--workers", "2"],
    }.get(command, [command, str(folder)])


def run(command: str, folder: Path, elsewhere: Path) -> None:
    """Run one command in this process; all that it may do is to refuse."""
    silent = io.StringIO()
    with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
        if command == "demo":
            _prepare(folder, force=False)
        elif command == "watch":
            targets(str(folder))
        else:
            main(command_line(command, folder, elsewhere))


@pytest.mark.timeout(max(300, COUNT))
def test_a_folder_of_a_user_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Content, modes, times, links and names of all of it, whatever command is given it, or any folder in it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for seed in range(COUNT):
        chance = random.Random(seed)
        home = tmp_path / "home"
        home.mkdir()
        places = [home, tmp_path]
        fill(home, chance, places)
        inside = [place for place in places if place.is_relative_to(home)]
        before = photograph(home)
        for command in chance.sample([*COMMANDS, "demo", "watch"], 4):
            folder, elsewhere = chance.choice(inside), tmp_path / "elsewhere"
            elsewhere.mkdir(exist_ok=True)
            if command == "demo" and not any(folder.iterdir()):
                continue  # it is asked to write there
            with contextlib.suppress(IoprofError):
                run(command, folder, elsewhere)
            assert before == photograph(home), (seed, command, folder)
        assert {"home", "elsewhere"} >= set(os.listdir(tmp_path)), seed
        shutil.rmtree(home)
        shutil.rmtree(tmp_path / "elsewhere", ignore_errors=True)
