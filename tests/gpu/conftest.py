"""Tests that need a GPU: skipped where something is missing, by its name; what they measured is
printed at the end."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

NEEDED: Final = {
    "lmdb": "lmdb",
    "msgspec": "msgspec",
    "numpy": "numpy",
    "PIL": "pillow",
    "polars": "polars",
    "psutil": "psutil",
    "rich": "rich",
    "simplejpeg": "simplejpeg",
    "torch": "torch",
    "typer": "typer",
}
"""What a recorded job and its report import, and the package that has it."""
MISSING: Final = [package for name, package in NEEDED.items() if find_spec(name) is None]
MEASURED: Final = pytest.StashKey[list[str]]()


class _Skipped(pytest.Module):
    """A module of tests that cannot be imported."""

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        pytest.skip(f"not installed: {', '.join(MISSING)}", allow_module_level=True)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    """Skip the modules before they are imported."""
    return _Skipped.from_parent(parent, path=module_path) if MISSING else None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """All skipped is no failure, for modules as for tests."""
    if MISSING and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Takes a line for the end of the output: a number that no test can judge, since it depends on
    the device."""
    return request.config.stash.setdefault(MEASURED, []).append


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """The lines that tests gave to `measured`."""
    if lines := config.stash.get(MEASURED, []):
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(line)
