"""Importing ioprof is cheap and has no side effects: it happens in every process of a job."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from repository import ROOT

pytestmark = pytest.mark.job

WITNESS = """
import json, logging, os, signal, sys, threading, traceback, warnings

class Witness:  # sees each import first, and lets it pass
    first = {}
    def find_spec(self, name, path=None, target=None):
        stack = traceback.extract_stack()
        asked = any(frame.name == "find_spec" and "importlib" in frame.filename for frame in stack)  # whether it is there
        if name == "torch" and name not in self.first and not asked:
            frames = [f"{frame.filename}:{frame.lineno}" for frame in stack if "ioprof" in frame.filename]
            self.first[name] = " > ".join(frames[-4:]) or "?"

def state():
    return {
        "signal handlers": {str(number): str(signal.getsignal(number)) for number in signal.valid_signals()},
        "threads": [thread.name for thread in threading.enumerate()],
        "kernel threads": len(os.listdir("/proc/self/task")),
        "environment": dict(os.environ),
        "working directory": os.getcwd(),
        "search path": list(sys.path),
        "log handlers": [str(handler) for handler in logging.getLogger().handlers],
        "warning filters": [str(entry) for entry in warnings.filters],
        "trace functions": [str(sys.gettrace()), str(sys.getprofile()), str(threading.gettrace())],
        "hooks": [str(sys.excepthook), str(sys.displayhook), str(sys.audit)],
        "open files": sorted(os.listdir("/proc/self/fd")),
    }

sys.meta_path.insert(0, Witness())
modules = set(sys.modules)
"""  # noqa: E501


def run(program: str, tmp_path: Path) -> dict[str, Any]:
    """The value of `result` after `program`, run by a new interpreter after WITNESS."""
    out = tmp_path / "result.json"
    code = f"{WITNESS}\n{program}\nopen({str(out)!r}, 'w').write(json.dumps(result))"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert 0 == ended.returncode, ended.stderr
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_import_ioprof_loads_no_other_library(tmp_path: Path) -> None:
    """A job that only records loads neither torch nor NumPy nor the libraries of the reports,
    unless it imports them itself."""
    program = (
        "import ioprof\nloaded = {name.split('.')[0] for name in set(sys.modules) - modules}\n"
    )
    program += "result = {'loaded': sorted(loaded - sys.stdlib_module_names)}"
    assert ["ioprof"] == run(program, tmp_path)["loaded"]


def test_import_ioprof_changes_nothing(tmp_path: Path) -> None:
    """Signal handlers, threads, variables, log handlers and open files are unchanged."""
    found = run(
        "before = state()\nimport ioprof\nresult = {'before': before, 'after': state()}", tmp_path
    )
    assert found["before"] == found["after"]


@pytest.mark.job(every=4)
@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["report", "--help"], ["convert", "--help"]]
)
def test_help_loads_no_torch(arguments: list[str], tmp_path: Path) -> None:
    """Help is fast: torch is loaded by the job, not by the command that starts it."""
    program = (
        f"from ioprof.cli import main\nresult = {{'code': main({arguments!r}), 'who':"
        " Witness.first.get('torch')}"
    )
    assert {"code": 0, "who": None} == run(program, tmp_path)
