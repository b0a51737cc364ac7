"""The test files nearest to what the working tree changes: `make quick` runs these.
`python tests/nearest.py` prints them.

What is compared with is the last commit; where nothing is changed since, the commit before it. A
test file is as far from a changed file as there are imports between them. A file that is no Python
counts as imported by the files that contain its name.
"""

import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from import_graph import helper_imports, module_imports
from repository import PACKAGES, ROOT, module_name, python_files, text_files

MOST_FILES: Final = 60
"""More would not run within a minute."""
_COMPARED: Final = (("diff", "--name-only", "HEAD"), ("ls-files", "--others", "--exclude-standard"))
_LAST_COMMIT: Final = ("diff", "--name-only", "HEAD~1", "HEAD")


def changed_files() -> set[Path]:
    """What is changed or new, relative to the checkout; empty where git does not tell."""
    return set().union(*map(_listed, _COMPARED)) or _listed(_LAST_COMMIT)


def _listed(command: tuple[str, ...]) -> set[Path]:
    try:
        ended = subprocess.run(
            ["git", *command], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):  # no git, no repository, or no commit before
        return set()
    return {Path(line) for line in ended.stdout.splitlines()}


def nearest_tests(changed: Iterable[Path]) -> list[Path]:
    """Test files, those named after a changed file first, then the nearest; with nothing changed
    all."""
    users = _users()
    distance = dict.fromkeys(changed, 0)
    waiting = list(distance)
    for path in waiting:  # which grows
        for user in sorted(users[path] | _naming(path)):
            if user not in distance:
                distance[user] = distance[path] + 1
                waiting.append(user)
    tests = [
        path
        for path in python_files("tests")
        if path.name.startswith("test_") and path.parent.name == "tests"
    ]
    reached = [path for path in tests if path in distance] or tests
    own = {f"test_{path.stem}" for path in distance if not distance[path]}
    return sorted(reached, key=lambda path: (path.stem not in own, distance.get(path, 0), path))[
        :MOST_FILES
    ]


def _users() -> dict[Path, set[Path]]:
    """By file those that import it."""
    files = {module_name(path): path for path in python_files(*PACKAGES)}
    files |= {".".join(path.with_suffix("").parts[1:]): path for path in python_files("tests")}
    users: dict[Path, set[Path]] = defaultdict(set)
    for path in python_files(*PACKAGES, "tests"):
        names = {*module_imports(path), *(helper_imports(path) if path.parts[0] == "tests" else ())}
        for name in names & files.keys():
            users[files[name]].add(path)
    return users


def _naming(changed: Path) -> set[Path]:
    """The Python files that contain the name of a file that is none: a C source, a style sheet, a
    program of the tests."""
    if changed.suffix == ".py" and changed.parts[:2] != ("tests", "programs"):
        return set()
    names = (changed.name, f"_{changed.stem} ", f'"{changed.stem}"')
    return {
        path
        for path in text_files()
        if path.suffix == ".py" and any(name in (ROOT / path).read_text() for name in names)
    }


if __name__ == "__main__":
    print(*nearest_tests(changed_files()), sep="\n")
