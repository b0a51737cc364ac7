"""Runs the programs that build and install the checkout, and copies it to a place that a build may
write to."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from repository import FOLDERS, ROOT


def run(*command: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command's outcome, with a few variables of the environment changed."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in {"PYTHONPATH", "VIRTUAL_ENV"}
    } | variables
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240
    )


def succeed(*command: str | Path, cwd: Path, **variables: str) -> str:
    """The output of a command that must not fail."""
    ended = run(*command, cwd=cwd, **variables)
    assert 0 == ended.returncode, f"{command}\n{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"
    return ended.stdout


def copy_checkout(destination: Path) -> Path:
    """The sources alone, links as links, in a place that a build may write to."""
    unwanted = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info", ".*_cache")
    destination.mkdir()
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, destination)
    for folder in FOLDERS:
        if (ROOT / folder).is_dir():
            shutil.copytree(ROOT / folder, destination / folder, symlinks=True, ignore=unwanted)
    return destination


def borrow_dependencies(environment: Path) -> None:
    """Have a virtual environment find the libraries of this one, without ioprof; nothing is fetched
    from a network."""
    site = next((environment / "lib").glob("python*")) / "site-packages"
    # A folder named in a .pth is searched, but its own .pth files, and with them an editable
    # install, are not read.
    (site / "dependencies.pth").write_text(
        "".join(f"{path}\n" for path in sys.path if path.endswith("site-packages"))
    )
