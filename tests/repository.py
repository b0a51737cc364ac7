"""The path of the checkout under test, and its project files."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PROGRAMS: Final = ROOT / "tests" / "programs"
"""Small programs that tests run, one behaviour each."""
NATIVE: Final = ROOT / "ioprof" / "native"
"""The sources of the C libraries."""
EXAMPLES: Final = Path(sys.prefix, "examples")
"""Where .ci/run puts a script of others, and a torchvision that fits torch."""

PACKAGES: Final = ("ioprof", "converters", "loaders")
FOLDERS: Final = (*PACKAGES, "tests", "benchmarks", "notebooks", "docs", ".ci")
"""The links ioprof/converters and ioprof/loaders are not followed, so each file is listed once, at
its real path."""

_NOT_TEXT: Final = (".so", ".pyc", ".png", ".jpg", ".JPEG", ".parquet", ".mdb", ".xz")


def text_files() -> list[Path]:
    """Every text file of the project, relative to the checkout."""
    not_ours = ("constraints.txt", ".git")  # which is a file in a worktree
    found = [path for path in ROOT.iterdir() if path.is_file() and path.name not in not_ours]
    for folder in FOLDERS:
        found += _walk(ROOT / folder)
    return sorted(path.relative_to(ROOT) for path in found if path.suffix not in _NOT_TEXT)


def python_files(*folders: str) -> list[Path]:
    """Every Python file in those folders of the checkout, relative to it."""
    return [path for path in text_files() if path.suffix == ".py" and path.parts[0] in folders]


@cache
def syntax_tree(path: Path) -> ast.Module:
    """The parsed file; `path` is relative to the checkout."""
    return ast.parse((ROOT / path).read_text(), filename=str(path))


def module_name(path: Path) -> str:
    """The name under which a package file is imported: `loaders/null.py` is
    `ioprof.loaders.null`."""
    parts = path.with_suffix("").parts
    if parts[0] != "ioprof":
        parts = ("ioprof", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _walk(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        if entry.is_symlink() or entry.name == "__pycache__" or entry.name.endswith(".egg-info"):
            continue
        if entry.is_dir():
            yield from _walk(entry)
        elif entry.is_file():
            yield entry
