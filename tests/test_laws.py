"""The tables of laws in tests/README.md: each test exists with its tier, and no file is missing."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from import_graph import dotted_name
from repository import ROOT, syntax_tree

README: Final = Path("tests", "README.md")
TIERS: Final = ("unit", "job", "system")
"""A test that has several marks is of the last of these."""
MARKS: Final = {
    "pytest.mark.job": "job",
    "pytest.mark.system": "system",
    "on_a_quiet_machine": "system",
}
_HEADER: Final = ["law", "test", "tier"]
_TEST: Final = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


@dataclass(frozen=True)
class Law:
    """A row of a table."""

    line: int
    text: str
    tests: tuple[tuple[str, str], ...]
    """Each with its file."""
    tier: str

    @property
    def place(self) -> str:
        """Where the row is, for messages."""
        return f"{README}:{self.line}"


@cache
def laws() -> list[Law]:
    """All rows of the tables, in their order."""
    found, cells = [], [""]
    for number, line in enumerate((ROOT / README).read_text().splitlines(), 1):
        if not line.startswith("|"):
            cells = [""]
            continue
        is_first = cells == [""]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if is_first:
            assert _HEADER == cells, f"{README}:{number}: the columns are to be {_HEADER}"
        elif set("".join(cells)) != {"-"}:
            assert 3 == len(cells), f"{README}:{number}: a row has 3 cells"
            found.append(Law(number, cells[0], tuple(_TEST.findall(cells[1])), cells[2]))
    return found


@cache
def tiers_of(file: str) -> dict[str, str]:
    """The tests of a file, each with its tier; none if there is no such file."""
    path = Path("tests", file)
    return dict(tiers_in(syntax_tree(path))) if (ROOT / path).exists() else {}


def tiers_in(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The tests of a parsed file, each with its tier, by its own marks and those of the file."""
    of_file = [node.value for node in tree.body if isinstance(node, ast.Assign) and _is_marks(node)]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.name, _tier([*of_file, *node.decorator_list])


def _is_marks(node: ast.Assign) -> bool:
    return ["pytestmark"] == [dotted_name(target) for target in node.targets]


def _tier(marks: Iterable[ast.expr]) -> str:
    names = {dotted_name(node) for mark in marks for node in ast.walk(mark)}
    return max((MARKS[name] for name in names & MARKS.keys()), key=TIERS.index, default="unit")


def all_files() -> list[str]:
    """The names of the test files."""
    return sorted(path.name for path in (ROOT / "tests").glob("test_*.py"))


def test_the_mark_that_needs_most_counts() -> None:
    """Of the marks of a test and those of its file, alone, in a list or called."""
    code = """
        def test_bare(): ...
        @pytest.mark.parametrize("job", ["system"])
        @pytest.mark.job
        def test_marked(): ...
        @on_a_quiet_machine
        @pytest.mark.job
        def test_of_times(): ...
        def helper(): ...
    """
    lines = [line.removeprefix("        ") for line in code.splitlines()]
    own = {"test_bare": "unit", "test_marked": "job", "test_of_times": "system"}
    assert own == dict(tiers_in(ast.parse("\n".join(lines))))
    lines += ["pytestmark = [needs_library, pytest.mark.job]"]
    assert own | {"test_bare": "job"} == dict(tiers_in(ast.parse("\n".join(lines))))


def test_the_tests_of_a_law_exist() -> None:
    """Each law names at least one test, and each test that it names is in that file."""
    wrong = [f"{law.place}: names no `test_FILE.py::test_NAME`" for law in laws() if not law.tests]
    for law in laws():
        missing = [f"{file}::{name}" for file, name in law.tests if name not in tiers_of(file)]
        wrong += [f"{law.place}: there is no {name}; correct or remove it" for name in missing]
    assert [] == wrong, "\n".join(["change these rows:", *wrong])


def test_the_tier_of_a_law_is_that_of_its_tests() -> None:
    """By the marks of the tests; where they differ, all their tiers in the order of `TIERS`."""
    wrong = []
    for law in laws():
        found = {tiers_of(file).get(name) for file, name in law.tests} - {None}
        expected = ", ".join(tier for tier in TIERS if tier in found)
        if found and expected != law.tier:
            wrong.append(f"{law.place}: write {expected} for {law.tier}")
    assert [] == wrong, "\n".join(["change these tiers:", *wrong])


def test_each_test_file_has_a_law() -> None:
    """A file whose laws are not worth a row need not be there."""
    named = {file for law in laws() for file, _ in law.tests}
    missing = [file for file in all_files() if file not in named]
    assert [] == missing, f"add to {README} a law of: {', '.join(missing)}"


def test_no_law_stands_twice() -> None:
    """Neither in the same words, nor by the same test."""
    texts = Counter(law.text.casefold() for law in laws())
    tests = Counter(test for law in laws() for test in law.tests)
    wrong = [f"{law.place}: {law.text}" for law in laws() if texts[law.text.casefold()] > 1]
    for law in laws():
        wrong += [f"{law.place}: {'::'.join(test)}" for test in law.tests if tests[test] > 1]
    assert [] == wrong, "\n".join(["keep one of these:", *wrong])


def test_the_modules_that_it_names_exist() -> None:
    """Each `NAME.py` and `FOLDER/` outside of the tables is in tests/."""
    lines = (ROOT / README).read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("|"))
    named = set(re.findall(r"`(\w+\.py|\w+/)`", text))
    assert named
    assert [] == sorted(name for name in named if not (ROOT / "tests" / name).exists())
