"""Ways in which a job's Python is installed and started: its hooks start, or the report names what
it is and what to do."""

import os
import subprocess
import sys
import venv
import zipapp
from pathlib import Path
from typing import Final

import pytest
from preload import captured, needs_library
from repository import PROGRAMS

from ioprof.analysis.capture import gaps
from ioprof.format.trace import Trace
from ioprof.instrument import preload
from ioprof.report.texts.catalogue.answer import gap_texts

pytestmark = [pytest.mark.job, needs_library]

REPORT: Final = PROGRAMS / "report_start.py"


def record(folder: Path, *command: object, **changes: str) -> tuple[str, Trace]:
    """What a command prints that runs in a folder under the library and the hooks, and what was
    recorded."""
    spool = folder / "spool"
    spool.mkdir(parents=True)
    others = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    variables = {**preload.environment(spool, others, hooks=True), **changes}
    words = [str(word) for word in command]
    ended = subprocess.run(
        words, cwd=folder, env=variables, capture_output=True, text=True, timeout=100
    )
    assert 0 == ended.returncode, ended.stderr
    return ended.stdout, captured(spool)


def succeed(*command: object, folder: Path) -> None:
    """Run a command that is no part of the job."""
    ended = subprocess.run(
        [str(word) for word in command], cwd=folder, capture_output=True, text=True, timeout=200
    )
    assert 0 == ended.returncode, ended.stdout + ended.stderr


def application(folder: Path) -> Path:
    """A folder with an application that says whether it is hooked."""
    source = folder / "application"
    source.mkdir()
    (source / "report_start.py").write_text(REPORT.read_text())
    (source / "__main__.py").write_text("import report_start\n")
    return source


@pytest.mark.parametrize("copies", [False, True])
def test_virtual_environments(copies: bool, tmp_path: Path) -> None:
    """`python -m venv`, with links to the interpreter and with copies of it; ioprof is not
    installed there."""
    venv.create(tmp_path / "environment", symlinks=not copies, with_pip=False)
    printed, trace = record(tmp_path / "job", tmp_path / "environment" / "bin" / "python", REPORT)
    assert "hooked\n" == printed
    assert () == trace.run.capture.unobserved


@pytest.mark.parametrize("way", ["venv", "run", "script"])
def test_uv(way: str, tmp_path: Path) -> None:
    """An environment that uv made, `uv run` in it, and a script with its requirements, for which uv
    makes an environment."""
    uv = pytest.importorskip("uv", reason="uv is not installed").find_uv_bin()
    cache = {
        "UV_CACHE_DIR": str(tmp_path / "cache"),
        "UV_OFFLINE": "1",
        "UV_PYTHON": sys.executable,
    }
    script = tmp_path / "script.py"
    script.write_text(
        '# /// script\n# requires-python = ">=3.11"\n# dependencies = []\n#'
        f" ///\n{REPORT.read_text()}"
    )
    environment = tmp_path / "environment"
    succeed(
        "env",
        *(f"{name}={value}" for name, value in cache.items()),
        uv,
        "venv",
        "--quiet",
        environment,
        folder=tmp_path,
    )
    command = {
        "venv": [environment / "bin" / "python", REPORT],
        "run": [uv, "run", "--quiet", "--no-project", "--python", environment, REPORT],
        "script": [uv, "run", "--quiet", "--script", script],
    }[way]
    assert "hooked\n" == record(tmp_path / "job", *command, **cache)[0]


def test_zip_applications(tmp_path: Path) -> None:
    """An archive that names its interpreter, and is executed."""
    target = tmp_path / "application.pyz"
    zipapp.create_archive(application(tmp_path), target, interpreter=sys.executable)
    for place, command in enumerate(
        ([target], [sys.executable, target], [sys.executable, "-I", target])
    ):
        assert "hooked\n" == record(tmp_path / str(place), *command)[0]


@pytest.mark.job(every=4)
@pytest.mark.parametrize("tool", ["pex", "shiv"])
def test_archives_with_their_libraries(tool: str, tmp_path: Path) -> None:
    """A PEX file and one of shiv, which start Python once more, in an environment of their own."""
    pytest.importorskip(tool, reason=f"{tool} is not installed")
    source, target = application(tmp_path), tmp_path / f"application.{tool}"
    (source / "__main__.py").unlink()
    (source / "start.py").write_text("def main():\n    import safetensors, report_start\n")
    (source / "safetensors.py").touch()  # of which a hook is found, and nothing in it
    modules = ["report_start", "safetensors", "start"]
    project = (
        'import setuptools\nsetuptools.setup(name="application", version="1",'
        f" py_modules={modules})\n"
    )
    (source / "setup.py").write_text(project)
    tools = [sys.executable, "-m", tool]
    if tool == "pex":
        succeed(
            *tools,
            "--sources-directory",
            source,
            "--entry-point",
            "start:main",
            "--output-file",
            target,
            folder=tmp_path,
        )
    else:
        succeed(
            *tools,
            "--entry-point",
            "start:main",
            "--output-file",
            target,
            "--no-build-isolation",
            "--no-deps",
            source,
            folder=tmp_path,
        )
    homes = {"PEX_ROOT": str(tmp_path / "root"), "SHIV_ROOT": str(tmp_path / "root")}
    printed, trace = record(tmp_path / "job", sys.executable, target, **homes)
    assert "hooked\n" == printed
    assert ["safetensors"] == [hook.unobserved for hook in trace.run.capture.unobserved]
    assert "none of the decoders" in (trace.run.capture.unobserved[0].why or "")


@pytest.mark.job(every=4)
@pytest.mark.parametrize("form", ["onedir", "onefile"])
def test_frozen_programs_are_named(form: str, tmp_path: Path) -> None:
    """PyInstaller's programs load an interpreter that reads neither PYTHONPATH nor site: their
    reads are recorded."""
    pytest.importorskip("PyInstaller", reason="PyInstaller is not installed")
    script = tmp_path / "frozen.py"
    script.write_text(
        f"{REPORT.read_text()}\nfor line in open(__import__('sys').argv[1]):\n    print(line)\n"
    )
    (tmp_path / "data.txt").write_text("data")
    succeed(
        sys.executable,
        "-m",
        "PyInstaller",
        f"--{form}",
        "--log-level",
        "ERROR",
        script,
        folder=tmp_path,
    )
    program = tmp_path / "dist" / ("frozen/frozen" if form == "onedir" else "frozen")
    printed, trace = record(tmp_path / "job", program, tmp_path / "data.txt")
    assert printed.startswith("not hooked\ndata")
    assert str(tmp_path / "data.txt") in trace.files["path"].to_list()
    assert any(
        "ran Python without the hooks of ioprof" in sentence for sentence in gap_texts(gaps(trace))
    )
