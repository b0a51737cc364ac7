"""Which version of its source a command runs: commit and uncommitted changes of the git repository
of its script.

The commit is read from the files of the repository (gitrepository-layout(5)). What is not committed
is asked of `git status`, which starts no hook and writes no index with these options, and is ended
after a time limit.
"""

import hashlib
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ioprof.files import read_regular_file
from ioprof.format.run_record import SourceRecord
from ioprof.process import printable

_LIMIT_S: Final = 0.3
"""For `git status`: the command starts after it. A repository of 10,000 files in the page cache
takes 0.02 s, one on a slow network file system any time."""
_MOST_FILES: Final = 20
_MOST_BYTES: Final = 4 << 20
"""Of a file that is read for its digest."""
_MOST_LEVELS: Final = 40
_SCRIPTS: Final = (".py", ".sh")
_STATUS: Final = (
    "git",
    "--no-optional-locks",
    "-c",
    "core.fsmonitor=false",  # else a program that the repository names
    "status",
    "--porcelain",
    "-z",
    "--no-renames",
    "--untracked-files=no",
    "--ignore-submodules=all",
)


def source_state(command: Sequence[str], environment: Mapping[str, str]) -> SourceRecord | None:
    """Of the script in `command`, or of the working directory where there is none. None: there is
    neither a script nor a repository.
    """
    try:
        script = next(
            (
                path
                for word in command
                if word.endswith(_SCRIPTS) and (path := Path(word)).is_file()
            ),
            None,
        )
        folder = script.resolve().parent if script else Path.cwd()
        root = _repository(folder)
        if root is not None:
            return _of_repository(root, environment)
        return SourceRecord(files={script.name: _digest(script)}) if script else None
    except (OSError, ValueError):  # unreadable, or gone
        return None


def _repository(folder: Path) -> Path | None:
    places = (folder, *folder.parents)[:_MOST_LEVELS]
    return next((place for place in places if (place / ".git").exists()), None)


def _of_repository(root: Path, environment: Mapping[str, str]) -> SourceRecord:
    own = _git_folder(root)
    branch, commit = _head(own)
    changed = _changed(root, environment)
    return SourceRecord(
        repository=printable(str(root)),
        branch=branch,
        commit=commit,
        changed=None if changed is None else len(changed),
        files={printable(name): _digest(root / name) for name in (changed or ())[:_MOST_FILES]},
    )


def _git_folder(root: Path) -> Path:
    """`.git`, or the folder that it names: of a worktree or a submodule."""
    path = root / ".git"
    return path if path.is_dir() else root / _text(path).removeprefix("gitdir:").strip()


def _head(own: Path) -> tuple[str | None, str | None]:
    """Branch and commit."""
    head = _text(own / "HEAD")
    if not head.startswith("ref:"):
        return None, _commit(head)
    name = head.removeprefix("ref:").strip()
    common = own / _text(own / "commondir") if (own / "commondir").is_file() else own
    for folder in (own, common):
        if (folder / name).is_file():
            return _branch(name), _commit(_text(folder / name))
    packed = _text(common / "packed-refs") if (common / "packed-refs").is_file() else ""
    found = re.search(rf"^(\S+) {re.escape(name)}$", packed, flags=re.MULTILINE)
    return _branch(name), _commit(found[1]) if found else None


def _branch(name: str) -> str:
    return printable(name.removeprefix("refs/heads/"))


def _commit(text: str) -> str | None:
    return text if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", text) else None


def _changed(root: Path, environment: Mapping[str, str]) -> list[str] | None:
    """Tracked files that differ from the commit. None: not known, since git is not there, refuses,
    or takes too long.
    """
    variables = {
        name: value
        for name, value in environment.items()
        if name in ("PATH", "HOME", "XDG_CONFIG_HOME")
    }
    try:
        ended = subprocess.run(
            _STATUS,
            cwd=root,
            env={**variables, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
            start_new_session=True,  # no Ctrl-C
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if ended.returncode:
        return None
    return sorted(os.fsdecode(entry)[3:] for entry in ended.stdout.split(b"\0") if len(entry) > 3)


def _digest(path: Path) -> str | None:
    """The first 12 digits of the SHA-256 of a file. None: it was removed, is no file, or large."""
    try:
        content = read_regular_file(path, _MOST_BYTES)
    except (OSError, ValueError):
        return None
    return hashlib.sha256(content).hexdigest()[:12]


def _text(path: Path) -> str:
    return os.fsdecode(read_regular_file(path, _MOST_BYTES)).strip()
