"""What is installed is what is in the checkout: sdist, wheel from the sdist, clean environment."""

import shutil
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from installing import borrow_dependencies, copy_checkout, run, succeed
from interpreters import interpreters
from preload import needs_library
from quiet_machine import comparing_times, on_a_quiet_machine
from repository import NATIVE, ROOT

from ioprof.report.run import Run

pytestmark = pytest.mark.system

LINKS = ("converters", "loaders")


def build(source: Path, out: Path, *what: str, **variables: str) -> None:
    """Build with the setuptools of this environment: nothing is fetched."""
    succeed(
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        *what,
        "--outdir",
        out,
        source,
        cwd=source,
        **variables,
    )


def clean_environment(path: Path, wheel: Path) -> Path:
    """An environment with the wheel, and the dependencies of this one behind it; returns its folder
    of programs."""
    venv.create(path, with_pip=False, symlinks=True)
    python = path / "bin" / "python"
    succeed(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        wheel,
        cwd=path,
    )
    borrow_dependencies(path)
    return path / "bin"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("packaging")
    build(copy_checkout(folder / "checkout"), folder / "dist")
    return folder / "dist"


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a clean environment, outside of the checkout, that has the
    wheel."""
    return clean_environment(tmp_path_factory.mktemp("installed"), next(built.glob("*.whl")))


def test_the_links_are_links_in_git() -> None:
    """Git stores them as links (mode 120000), not as copies of the folders or as text."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout, or no git on this machine")
    listed = succeed("git", "ls-files", "-s", *(f"ioprof/{name}" for name in LINKS), cwd=ROOT)
    assert [["120000", f"ioprof/{name}"] for name in LINKS] == [
        [line.split()[0], line.split()[-1]] for line in listed.splitlines()
    ]
    assert [Path("..", name) for name in LINKS] == [
        (ROOT / "ioprof" / name).readlink() for name in LINKS
    ]


@pytest.mark.system(every=4)
def test_the_wheel_holds_one_package(built: Path) -> None:
    """The user's own `loaders.py` is never shadowed; both linked folders and the package's data are
    inside."""
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = wheel.namelist()
    tops = {name.split("/")[0] for name in names}
    assert ["data", "dist-info", "ioprof"] == sorted(top.rpartition(".")[2] for top in tops)
    assert ["ioprof"] == [Path(name).name for name in names if ".data/" in name]
    wanted = {
        "ioprof/converters/__init__.py",
        "ioprof/loaders/__init__.py",
        "ioprof/py.typed",
        "ioprof/train/devices.toml",
    }
    assert set() == wanted - set(names)


def test_the_wheel_holds_every_module(built: Path) -> None:
    """Each Python file of the package, the linked folders included, is in the wheel."""
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = {name for name in wheel.namelist() if name.endswith(".py")}
    roots = {ROOT / "ioprof": "ioprof", **{ROOT / name: f"ioprof/{name}" for name in LINKS}}
    assert {
        f"{name}/{path.relative_to(root)}"
        for root, name in roots.items()
        for path in root.rglob("*.py")
    } == names


def test_the_sdist_holds_the_c_sources(built: Path) -> None:
    """A machine with a compiler can build the capture library from the sdist, and the file format
    is explained there."""
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = {member.name.partition("/")[2] for member in sdist if member.isfile()}
    sources = {
        str(path.relative_to(ROOT))
        for path in NATIVE.rglob("*")
        if path.suffix in {".c", ".h", ".md"}
    }
    sources |= {
        f"converters/images/{path.name}"
        for path in ROOT.joinpath("converters", "images").glob("*.[ch]")
    }
    sources |= {
        "ioprof/native/FORMAT.md",
        "ioprof/native/spans/module.c",
        "LICENSE",
        "README.md",
        "setup.py",
    }
    assert set() == sources - names


@pytest.mark.system(every=4)
def test_the_installed_package_works_outside_of_the_checkout(
    installed: Path, tmp_path: Path
) -> None:
    """Everything is imported from the wheel, the linked folders only by their package names."""
    program = (
        "import ioprof, ioprof.converters as c, ioprof.loaders as l\nprint(ioprof.__file__,"
        " c.__file__, l.__file__)"
    )
    origins = succeed(installed / "python", "-c", program, cwd=tmp_path).split()
    assert [] == [origin for origin in origins if not Path(origin).is_relative_to(installed.parent)]
    for name in LINKS:
        ended = run(installed / "python", "-c", f"import {name}", cwd=tmp_path)
        assert f"ModuleNotFoundError: No module named '{name}'" == ended.stderr.splitlines()[-1]


@pytest.mark.system(every=4)
def test_the_installed_program_runs(installed: Path, tmp_path: Path) -> None:
    """The entry point is there and shows its commands."""
    assert "report" in succeed(installed / "ioprof", "--help", cwd=tmp_path)


PROGRAM = """
import sys, ioprof
from ioprof.instrument import recorder
with ioprof.span("mine"):
    open(sys.argv[1]).read()
print(sys.version_info[:2], recorder.uses_native())
"""
COSTS = (
    "from ioprof.instrument import recorder; print(min(recorder.cost_per_span_ns() for _ in"
    " range(5)))"
)


@needs_library
@on_a_quiet_machine
def test_the_wheel_records_at_full_speed_where_there_is_no_compiler(
    installed: Path, tmp_path: Path
) -> None:
    """Jobs under its own Python and the newest: reads by the library, spans by the extension, at
    the cost that they have here."""
    (tmp_path / "data.txt").write_text("data")
    newest = max(interpreters().items())
    for version, python in dict([newest, (sys.version_info[:2], installed / "python")]).items():
        run_folder = tmp_path / str(version[1])
        command = [python, "-c", PROGRAM, tmp_path / "data.txt"]
        printed = succeed(
            installed / "ioprof",
            "record",
            "--quiet",
            "--out",
            run_folder,
            "--",
            *command,
            cwd=tmp_path,
            PATH=str(installed),
        )
        assert f"{version} True" == printed.strip()
        recorded = Run.load(run_folder)
        assert () == recorded.trace.run.capture.unobserved
        assert recorded.trace.run.reads_captured
        assert str(tmp_path / "data.txt") in recorded.trace.files["path"].to_list()
        assert "mine" in recorded.trace.spans["name"].cast(str).to_list()
    costs = [
        float(succeed(python, "-c", COSTS, cwd=tmp_path))
        for python in (installed / "python", sys.executable)
    ]
    with comparing_times():
        assert costs[0] < 1.5 * costs[1]


@pytest.mark.system(every=4)
def test_without_a_compiler_the_install_says_what_to_do(built: Path, tmp_path: Path) -> None:
    """In its last line; no wheel is left."""
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        sdist.extractall(tmp_path / "source", filter="data")
    source = next((tmp_path / "source").iterdir())
    ended = run(
        sys.executable,
        "setup.py",
        "--quiet",
        "bdist_wheel",
        "--dist-dir",
        tmp_path / "dist",
        cwd=source,
        CC="false",
    )
    assert 1 == ended.returncode
    assert "make wheel" in ended.stderr.splitlines()[-1]
    assert "install a compiler" in ended.stderr.splitlines()[-1]
    assert not (tmp_path / "dist").exists()


def test_without_its_extension_ioprof_says_what_to_do(tmp_path: Path) -> None:
    """One line, of commands and of the functions of `import ioprof`; a recorded command runs, and
    is not recorded."""
    blocked = "import sys; sys.modules['ioprof._native'] = None; "
    command = (
        f"{blocked}from ioprof.__main__ import program; sys.argv = ['ioprof', *sys.argv[1:]];"
        " sys.exit(program())"
    )
    ended = run(sys.executable, "-I", "-c", command, "report", tmp_path, cwd=tmp_path)
    assert 2 == ended.returncode
    (line,) = ended.stderr.splitlines()
    assert "pip install a wheel" in line
    assert "make wheel" in line
    ended = run(
        sys.executable,
        "-I",
        "-c",
        command,
        "record",
        "--",
        "sh",
        "-c",
        "echo ran; exit 3",
        cwd=tmp_path,
    )
    assert (3, "ran\n") == (ended.returncode, ended.stdout)
    assert "make wheel" in ended.stderr
    ended = run(
        sys.executable,
        "-I",
        "-c",
        f"{blocked}import ioprof; print(ioprof.span('x')); ioprof.load('x')",
        cwd=tmp_path,
    )
    assert (
        ended.stderr.splitlines()[-1]
        == f"ioprof.errors.CommandError: {line.removeprefix('ioprof: ')}"
    )


def test_a_link_that_was_flattened_to_text_stops_the_build(tmp_path: Path) -> None:
    """Unpacking a .zip writes links as text files: a wheel of that would lack two packages, and
    nobody would know why."""
    source = copy_checkout(tmp_path / "checkout")
    (source / "ioprof" / "loaders").unlink()
    (source / "ioprof" / "loaders").write_text("../loaders")
    ended = run(
        sys.executable,
        "setup.py",
        "--quiet",
        "build_py",
        "--build-lib",
        tmp_path / "out",
        cwd=source,
    )
    assert 0 != ended.returncode
    assert "ioprof/loaders" in ended.stderr.splitlines()[-1]
    assert "git" in ended.stderr.splitlines()[-1]
