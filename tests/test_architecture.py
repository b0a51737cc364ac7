"""The rules of the house that a parser can check: who may import whom, who may speak, and how long a thing may get."""

import ast
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Final

import pytest
from repository import PACKAGES, ROOT, module_name, python_files, syntax_tree, text_files

PACKAGE: Final = python_files(*PACKAGES)

EVERYTHING: Final = frozenset({"everything"})

MAY_IMPORT: Final[dict[str, set[str] | frozenset[str]]] = {
    # The leaves: words, time, errors, bytes, the kernel. They know nothing of the rest.
    "errors": set(),
    "schema": set(),
    "layout": set(),
    "series": set(),
    "perf": set(),
    "clock": set(),
    "file_systems": set(),
    "process": set(),
    "_native": set(),
    "_resize": set(),
    "_probe": set(),
    "tensorprotos": {"errors"},
    "storage": {"_probe", "clock", "errors", "file_systems"},
    # What the stages hand to each other.
    "dataset": {"errors", "schema"},
    "trace": {"errors", "schema"},
    # The job's side. It only writes: no trace, no analysis, no report.
    "record": {"_native", "clock", "errors", "file_systems", "perf", "schema", "series"},
    "converters": {"_resize", "dataset", "errors", "schema", "tensorprotos", "process"},  # process: its workers die with it
    "loaders": {
        "clock",  # a batch's times
        "dataset",
        "errors",
        "file_systems",
        "process",
        "record",
        "schema",
        "tensorprotos",
    },
    "train": {
        "clock",
        "dataset",
        "errors",
        "loaders",
        "process",
        "record",
        "schema",
        "storage",
    },  # the whole job, as a user would write it
    # The reader's side. It never sees the job, only the run folder.
    "spool": {"clock", "errors", "layout", "perf", "schema", "series", "trace"},
    "analysis": {"errors", "schema", "trace"},
    "report": {"analysis", "errors", "schema", "trace"},
    # What can be seen on this machine, found by recording a little and reading it back.
    "doctor": {"errors", "file_systems", "record", "spool"},
    # The two ends.
    "ioprof": {"profiling", "record", "trace"},  # the public names
    "profiling": {"cli", "errors", "record"},  # what a command does, as a function
    "cli": EVERYTHING,
    "__main__": {"cli"},
}
"""Which part of the package may import which. A part may always import itself."""

HEAVY: Final = {
    "record": {"numpy", "polars", "plotly", "torch"},  # it runs in every process of the job, torch or not
    "converters": {"polars", "plotly", "torch"},  # a data engineer's machine need not load them
    "trace": {"plotly", "torch"},
    "spool": {"plotly", "torch"},
    "analysis": {"plotly", "torch"},  # no computation draws
    "report": {"torch"},
    "cli": {"torch"},
}
"""What a part may not import at the top of a module, where merely naming a command would load it."""

MAY_SPEAK: Final = {
    "ioprof/profiling.py": {"os.environ"},  # the user's own process, which may be under another profiler
    "ioprof/record/autostart.py": {"os.environ"},  # runs in the job, which is told by the environment that it is recorded
    "ioprof/record/site/sitecustomize.py": {"os.environ", "sys.stderr"},  # the same; says why not where IOPROF_DEBUG is set
    "ioprof/__main__.py": {"SystemExit"},  # `python -m ioprof` ends with the exit code of the command line
    # The program that torchrun starts for each rank: it is told its rank by the environment, as every such program is.
    "ioprof/train/job.py": {"os.environ", "sys.argv", "sys.stdout", "os._exit", "SystemExit"},
    "ioprof/train/torchrun.py": {"sys.argv"},  # a program of its own, as job.py is
    "loaders/torch_loader.py": {"os._exit"},  # a worker that is told to stop ends as torch's own handler would end it
}
"""What modules outside of ioprof/cli do of what is otherwise the command line's business, and why."""

# Written in pieces, so that this file is not the one that it finds.
LEFT_OPEN: Final = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX|NotImplemented" r"Error)\b")
HOME_PATH: Final = re.compile(r"(?<![\w.])/(?:home|Users|root|work)" r"/[\w.]+")

FUNCTION_LINES: Final = 60
MODULE_LINES: Final = 500


def part(module: str) -> str:
    """`ioprof.record.span` belongs to `record`; the package itself is `ioprof`."""
    names = module.split(".")
    return names[1] if len(names) > 1 else "ioprof"


def imports(tree: ast.Module, importer: str) -> Iterator[tuple[str, ast.AST]]:
    """Every module that `tree` imports, anywhere in it; relative names are resolved, literal dynamic imports included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, importer)
            yield from ((f"{base}.{alias.name}" if base == "ioprof" else base, node) for alias in node.names)
        elif isinstance(node, ast.Call) and _dotted(node.func).endswith("import_module") and node.args:
            yield from ((name, node) for name in [getattr(node.args[0], "value", None)] if isinstance(name, str))


def file_imports(path: Path) -> Iterator[tuple[str, ast.AST]]:
    """The same for a file of the checkout."""
    package = module_name(path)
    return imports(syntax_tree(path), f"{package}.__init__" if path.name == "__init__.py" else package)


def _absolute(node: ast.ImportFrom, importer: str) -> str:
    if not node.level:
        return node.module or ""
    above = importer.split(".")[: -node.level]
    return ".".join([*above, node.module] if node.module else above)


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def breaches(importer: str, imported: Iterable[str]) -> list[str]:
    """The parts of ioprof that a module imports against the arrows."""
    allowed = MAY_IMPORT.get(part(importer), set())
    names = {_imported_part(module) for module in imported if module.split(".")[0] == "ioprof" and module != "ioprof.__version__"}
    return [] if allowed is EVERYTHING else sorted(names - allowed - {part(importer)})


def _imported_part(module: str) -> str:
    name = part(module)
    return name if name in MAY_IMPORT else "ioprof"  # `from ioprof import span`


def test_every_part_has_its_arrows() -> None:
    """A new module or folder directly under ioprof/ is entered in the table, with what it may import."""
    assert {part(module_name(path)) for path in PACKAGE} <= MAY_IMPORT.keys()


def test_imports_follow_the_arrows() -> None:
    """No part of the package knows of more than DESIGN gives it."""
    found = {str(path): breaches(module_name(path), (name for name, _ in file_imports(path))) for path in PACKAGE}
    assert {} == {path: names for path, names in found.items() if names}


def test_the_arrows_have_no_circle() -> None:
    """The table itself is a direction: no part can reach itself by way of another."""

    def reachable(name: str) -> set[str]:
        direct = set(MAY_IMPORT[name]) - EVERYTHING
        return direct.union(*map(reachable, direct))

    assert [] == [name for name in MAY_IMPORT if name in reachable(name)]


def test_a_forbidden_import_is_seen() -> None:
    """The check finds plain, relative, lazy and dynamic imports, and lets through what is allowed."""
    lines = [
        "import ioprof.record.span",
        "from ..cli import main",
        "def f():",
        "    from ioprof import train",
        "    import_module('ioprof.loaders')",
    ]
    tree = ast.parse("\n".join([*lines, "from ioprof.trace import Trace", "from .intervals import union"]))
    imported = [name for name, _ in imports(tree, "ioprof.analysis.x")]
    assert ["cli", "loaders", "record", "train"] == breaches("ioprof.analysis.x", imported)


def test_heavy_libraries_are_imported_late() -> None:
    """Neither the job's side nor a command's name loads torch, polars or plotly when the module is imported."""
    found = []
    for path in PACKAGE:
        top = {id(node) for node in _at_import(syntax_tree(path))}
        heavy = HEAVY.get(part(module_name(path)), set())
        found += [f"{path}: {name}" for name, node in file_imports(path) if id(node) in top and name.split(".")[0] in heavy]
    assert [] == found


def _at_import(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes that run when the module is imported: not those in functions, nor those for type checkers only."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and _dotted(node.test).endswith("TYPE_CHECKING"):
            waiting += node.orelse
            continue
        yield node
        waiting += ast.iter_child_nodes(node)


def test_the_linked_folders_are_imported_by_their_package_names() -> None:
    """`import converters` would load a second copy, and a user's own `loaders.py` would shadow ours."""
    files = python_files(*PACKAGES, "tests", "benchmarks")
    found = [
        f"{path}: {name}" for path in files for name, _ in file_imports(path) if name.split(".")[0] in {"converters", "loaders"}
    ]
    assert [] == found


def test_no_linked_module_bears_the_name_of_a_library() -> None:
    """`python converters/webdataset.py` would import itself for the library."""
    libraries = set(packages_distributions()) | {
        "dali",
        "dask",
        "datasets",
        "h5py",
        "litdata",
        "nvidia",
        "parquet",
        "pyarrow",
        "streaming",
        "zarr",
    }
    assert [] == [str(path) for path in python_files("converters", "loaders") if path.stem in libraries - {"__init__"}]


def test_only_the_command_line_speaks() -> None:
    """Printing, exiting, and reading the environment or the arguments are the business of ioprof/cli, with few exceptions."""
    silent = [path for path in PACKAGE if path.parts[:2] != ("ioprof", "cli")]
    found = {str(path): {what for what, _ in _speech(path)} for path in silent}
    assert MAY_SPEAK == {path: names for path, names in found.items() if names}


OF_OS_AND_SYS: Final = {"os.environ", "os.environb", "os.getenv", "os._exit", "sys.argv", "sys.exit", "sys.stdout", "sys.stderr"}
SPEECH: Final = OF_OS_AND_SYS | {"print", "exit", "quit", "SystemExit"}


def _speech(path: Path) -> Iterator[tuple[str, ast.expr | ast.stmt]]:
    for node in ast.walk(syntax_tree(path)):
        if isinstance(node, ast.Attribute | ast.Name) and _dotted(node) in SPEECH:
            yield _dotted(node), node
        elif isinstance(node, ast.ImportFrom):
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from ((name, node) for name in names if name in OF_OS_AND_SYS)


def test_public_names_have_docstrings() -> None:
    """A public class or function says what its name cannot; so does every module."""
    bare = [str(path) for path in PACKAGE if not ast.get_docstring(syntax_tree(path))]
    bare += [
        f"{path}:{node.lineno} {node.name}"
        for path in PACKAGE
        for node in _public(syntax_tree(path))
        if not ast.get_docstring(node)
    ]
    assert [] == bare


def _public(owner: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for node in owner.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        if not any(_dotted(mark).endswith(("overload", "override", ".setter")) for mark in node.decorator_list):
            yield node
        if isinstance(node, ast.ClassDef):
            yield from _public(node)


def test_functions_and_modules_stay_short() -> None:
    """Beyond 60 lines two things live in a function; beyond 500 two rooms share one door."""
    long = []
    for path in python_files(*PACKAGES, "tests", "benchmarks"):
        lines = len((ROOT / path).read_text().splitlines())
        long += [f"{path}: {lines} lines"] if lines > MODULE_LINES else []
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (length := _length(node)) > FUNCTION_LINES:
                long.append(f"{path}:{node.lineno} {node.name}: {length} lines")
    assert [] == long


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_errors_are_named() -> None:
    """No bare `except:`, and nothing raises a nameless Exception."""
    found = []
    for path in python_files(*PACKAGES, "benchmarks"):
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, ast.ExceptHandler) and node.type is None:
                found.append(f"{path}:{node.lineno}: bare except")
            elif isinstance(node, ast.Raise) and node.exc is not None and _raised(node.exc) in {"Exception", "BaseException"}:
                found.append(f"{path}:{node.lineno}: nameless exception")
    assert [] == found


def _raised(node: ast.expr) -> str:
    return _dotted(node.func if isinstance(node, ast.Call) else node)


@pytest.mark.parametrize(("what", "pattern"), [("left open", LEFT_OPEN), ("somebody's path", HOME_PATH)])
def test_no_file_holds(what: str, pattern: re.Pattern[str]) -> None:
    """Work is finished or not begun, and no file knows the machine that it was written on."""
    found = []
    for path in text_files():
        lines = (ROOT / path).read_text(errors="replace").splitlines()
        found += [f"{path}:{number}: {what}: {line.strip()[:80]}" for number, line in enumerate(lines, 1) if pattern.search(line)]
    assert [] == found
