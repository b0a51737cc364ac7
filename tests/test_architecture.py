"""Rules that a parser can check: permitted imports, output and environment access, and sizes of
folders."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Final

import pytest
from import_graph import absolute_name, dotted_name, module_imports
from repository import PACKAGES, ROOT, module_name, python_files, syntax_tree, text_files

PACKAGE: Final = python_files(*PACKAGES)

EVERYTHING: Final = frozenset({"everything"})

MAY_IMPORT: Final[dict[str, str | frozenset[str]]] = {
    # The leaves: errors, time, bytes, the kernel. They know nothing of the rest.
    **dict.fromkeys(["errors", "clock", "file_systems", "process", "masking", "reporter"], ""),
    **dict.fromkeys(["_native", "_resize", "_bilinear", "_jpeg", "_probe", "_checksum"], ""),
    **dict.fromkeys(["_scan", "_intervals", "_bins", "_chunks", "_read_sums"], ""),
    **dict.fromkeys(["options", "configuration"], "errors"),
    "files": "errors",
    "progress": "reporter",  # draws on the console that the command line passes in
    "jpeg": "_jpeg",
    "foreign": "_checksum errors",
    "storage": "_probe clock errors files file_systems reporter",
    # What the stages hand to each other.
    "format": "errors files",
    # The job's side. It only writes: no trace, no analysis, no report.
    "instrument": "_native clock errors file_systems format",
    "stacks": "clock errors format",  # the launcher's side: reads other processes' memory
    # Workers of converters end with their parent: `process`.
    "converters": "_resize errors files foreign format jpeg options process reporter",
    "loaders": "_bilinear clock errors file_systems foreign format instrument jpeg options process",
    # The whole job, as a user would write it.
    "train": "clock errors files format instrument loaders options process storage",
    # The reader's side. It never sees the job, only the run folder.
    "ingest": "_chunks _scan clock errors files format masking",
    "native": "file_systems format",  # generates C from the tables of Python
    "analysis": "_intervals _read_sums errors files format",
    "model": "analysis errors format options train",  # of train what devices and networks are
    "report": "_bins analysis errors files format model",
    "interchange": "_scan clock errors files foreign format ingest",
    # What can be seen on this machine, found by recording a little and reading it back.
    "doctor": "errors file_systems ingest instrument jpeg storage",
    # One recording of any job, and the jobs that ioprof itself runs.
    "recording": "analysis clock errors files format ingest instrument masking model process "
    "report reporter stacks storage",
    "jobs": "analysis clock converters errors files format instrument loaders masking model "
    "options process recording report reporter storage train",
    # What any path is: it knows the folders that the others make.
    "inspection": "converters errors files format recording report storage",
    # Runs of before, without their spans.
    "store": "analysis errors format report",
    # A run from files of other profilers.
    "importing": "analysis errors interchange masking model recording report",
    # Reads the capture files of a job that goes on.
    "watching": "analysis clock errors files format ingest instrument masking recording report",
    # The two ends. Where even the command line cannot be loaded, the job is run all the same.
    "extension": "errors instrument",
    # the public names
    "ioprof": "api extension format instrument notebook report",
    "api": "analysis converters errors format instrument jobs model options recording report "
    "reporter store watching",
    # Where people work besides the command line: a cell of a notebook, loops of libraries.
    **dict.fromkeys(["notebook", "integrations"], "api errors format recording report"),
    # Answers about runs as tools of an assistant, and the commands that it may record.
    "assistant": "analysis api errors format model process recording report",
    "cli": EVERYTHING,
    "__main__": "cli process recording",
}
"""Which part of the package may import which. A part may always import itself."""

HEAVY: Final = {
    # it runs in every process of the job, torch or not
    "instrument": {
        "msgspec",
        "numpy",
        "polars",
        "plotly",
        "torch",
    },
    # as light as what it samples beside
    "stacks": {
        "msgspec",
        "numpy",
        "polars",
        "plotly",
        "torch",
    },
    "converters": {"polars", "plotly", "torch"},  # a data engineer's machine need not load them
    "format": {"plotly", "torch"},
    "ingest": {"plotly", "torch"},
    "analysis": {"plotly", "torch"},  # no computation draws
    "model": {"plotly", "torch"},
    "report": {"torch"},
    "cli": {"torch"},
}
"""What a part may not import at the top of a module, where merely naming a command would load
it."""

MAY_SPEAK: Final = {
    "ioprof/api.py": {"os.environ"},  # a caller in Python passes its own environment on by default
    # runs in the job, which is told by the environment that it is recorded
    "ioprof/instrument/autostart.py": {"os.environ"},
    # the same; says why not where IOPROF_DEBUG is set
    "ioprof/instrument/site/sitecustomize.py": {
        "os.environ",
        "sys.stderr",
    },
    # The command: it ends with the exit code of the command line, and leaves out what the
    # environment gives Python.
    "ioprof/__main__.py": {"SystemExit", "os.environ", "sys.argv"},
    # a forked copy of the process ends there
    "ioprof/process.py": {
        "os._exit",
        "os.environ",
        "sys.stderr",
        "sys.stdout",
    },
    # in place of the command line, where that cannot go on
    "ioprof/recording/unrecorded.py": {
        "SystemExit",
        "sys.stderr",
    },
    # The program of each rank: it is told its rank by the environment, as every such program is.
    "ioprof/train/job.py": {"os.environ", "sys.argv", "sys.stdout", "os._exit", "SystemExit"},
    # a program of ranks too
    "ioprof/train/network.py": {
        "os.environ",
        "sys.argv",
        "sys.stdout",
        "os._exit",
        "SystemExit",
    },
    # Gloo reads there which network interface it is to use
    "ioprof/train/rendezvous.py": {"os.environ"},
    # A program of its own: polars reads there how to allocate, and its answer goes to the process
    # that started it.
    "ioprof/recording/storing_process.py": {"os.environ", "os._exit", "sys.stdout"},
    # a worker that is told to stop ends as torch's own handler would end it
    "loaders/torch_loader.py": {"os._exit"},
}
"""What modules outside of ioprof/cli do of what is otherwise the command line's business, and
why."""

MAY_TAKE_DICTS: Final = {
    "ioprof/report/figures.py": "rows of a polars table, for plotly",
    "ioprof/report/texts/probing.py": "what `ioprof probe --json` prints, which is no run",
    "ioprof/report/page/probe_page.py": "the same",
    "ioprof/report/texts/probe_text.py": "the same",
    "ioprof/ingest/merging.py": "any two JSON objects, compared key by key",
}
"""Modules of the reader's side with a parameter of type `dict[str, Any]`, and what it holds."""

# Written in pieces, so that this file is not the one that it finds.
LEFT_OPEN: Final = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX|NotImplemented" r"Error)\b")
HOME_PATH: Final = re.compile(r"(?<![\w.])/(?:home|Users|root|work)" r"/[\w.]+")


def part(module: str) -> str:
    """`ioprof.instrument.span` belongs to `instrument`; the package itself is `ioprof`."""
    names = module.split(".")
    return names[1] if len(names) > 1 else "ioprof"


def imports(tree: ast.Module, importer: str) -> Iterator[tuple[str, ast.AST]]:
    """Every module that `tree` imports, anywhere in it; relative names are resolved, literal
    dynamic imports included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute_name(node, importer)
            yield from (
                (f"{base}.{alias.name}" if base == "ioprof" else base, node) for alias in node.names
            )
        elif (
            isinstance(node, ast.Call)
            and dotted_name(node.func).endswith("import_module")
            and node.args
        ):
            yield from (
                (name, node)
                for name in [getattr(node.args[0], "value", None)]
                if isinstance(name, str)
            )


def file_imports(path: Path) -> Iterator[tuple[str, ast.AST]]:
    """The same for a file of the checkout."""
    package = module_name(path)
    return imports(
        syntax_tree(path), f"{package}.__init__" if path.name == "__init__.py" else package
    )


def allowed_parts(name: str) -> frozenset[str]:
    """What a part may import."""
    allowed = MAY_IMPORT.get(name, "")
    return allowed if isinstance(allowed, frozenset) else frozenset(allowed.split())


def breaches(importer: str, imported: Iterable[str]) -> list[str]:
    """The parts of ioprof that a module imports but may not."""
    allowed = allowed_parts(part(importer))
    names = {
        _imported_part(module)
        for module in imported
        if module.split(".")[0] == "ioprof" and module != "ioprof.__version__"
    }
    return [] if allowed is EVERYTHING else sorted(names - allowed - {part(importer)})


def _imported_part(module: str) -> str:
    name = part(module)
    return name if name in MAY_IMPORT else "ioprof"  # `from ioprof import span`


def test_every_part_has_its_arrows() -> None:
    """A new module or folder directly under ioprof/ is entered in the table, with what it may
    import."""
    assert {part(module_name(path)) for path in PACKAGE} <= MAY_IMPORT.keys()


def test_imports_follow_the_arrows() -> None:
    """Parts of the package import only what the table permits."""
    found = {
        str(path): breaches(module_name(path), (name for name, _ in file_imports(path)))
        for path in PACKAGE
    }
    assert {} == {path: names for path, names in found.items() if names}


def test_the_arrows_have_no_circle() -> None:
    """The table has no cycles."""

    def reachable(name: str) -> set[str]:
        direct = set(allowed_parts(name) - EVERYTHING)
        return direct.union(*map(reachable, direct))

    assert [] == [name for name in MAY_IMPORT if name in reachable(name)]


MOST_MODULES: Final = 25
"""In one folder of the package."""


def test_no_folder_has_too_many_modules() -> None:
    """A reader who looks for the place to change sees all of a folder at once."""
    counted = Counter(path.parent for path in PACKAGE)
    assert {} == {folder: number for folder, number in counted.items() if number > MOST_MODULES}


def test_no_modules_import_each_other_in_a_cycle() -> None:
    """No chain of imports leads from a module back to itself: those within functions and those for
    types count too. The package itself, which hands its public names on, is left out.
    """
    graph = {
        module_name(path): set(module_imports(path, types=True)) - {module_name(path)}
        for path in PACKAGE
    }
    assert [] == cycles(graph)


def test_a_cycle_is_found() -> None:
    """The check names the modules of each cycle, and finds none in a chain."""
    assert [] == cycles({"a": {"b", "c"}, "b": {"c"}, "c": set()})
    assert [{"b", "c", "d"}] == cycles({"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": {"b"}})


def cycles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """The modules of each cycle of the graph; those of cycles that share a module together."""

    def reachable(start: str) -> set[str]:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            new = graph[waiting.pop()] - found
            found |= new
            waiting += new
        return found

    reached = {module: reachable(module) for module in graph}
    found: list[set[str]] = []
    for module in graph:
        if module in reached[module] and not any(module in known for known in found):
            found.append({other for other in reached[module] if module in reached[other]})
    return found


def test_a_forbidden_import_is_seen() -> None:
    """The check finds plain, relative, lazy and dynamic imports, and accepts permitted ones."""
    lines = [
        "import ioprof.instrument.span",
        "from ..cli import main",
        "def f():",
        "    from ioprof import train",
        "    import_module('ioprof.loaders')",
    ]
    tree = ast.parse(
        "\n".join([*lines, "from ioprof.format.trace import Trace", "from .intervals import union"])
    )
    imported = [name for name, _ in imports(tree, "ioprof.analysis.x")]
    assert ["cli", "instrument", "loaders", "train"] == breaches("ioprof.analysis.x", imported)


def test_heavy_libraries_are_imported_late() -> None:
    """Importing modules for the job, or the names of commands, loads neither torch, polars nor
    plotly."""
    found = []
    for path in PACKAGE:
        top = {id(node) for node in _at_import(syntax_tree(path))}
        heavy = HEAVY.get(part(module_name(path)), set())
        found += [
            f"{path}: {name}"
            for name, node in file_imports(path)
            if id(node) in top and name.split(".")[0] in heavy
        ]
    assert [] == found


def _at_import(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes that run when the module is imported: not those in functions, nor those for type
    checkers only."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and dotted_name(node.test).endswith("TYPE_CHECKING"):
            waiting += node.orelse
            continue
        yield node
        waiting += ast.iter_child_nodes(node)


def test_the_linked_folders_are_imported_by_their_package_names() -> None:
    """`import converters` would load a second copy, and a `loaders.py` of the user would shadow
    ours."""
    files = python_files(*PACKAGES, "tests", "benchmarks")
    found = [
        f"{path}: {name}"
        for path in files
        for name, _ in file_imports(path)
        if name.split(".")[0] in {"converters", "loaders"}
    ]
    assert [] == found


def test_no_linked_module_bears_the_name_of_a_library() -> None:
    """`python converters/webdataset.py` would import itself instead of the library."""
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
    assert [] == [
        str(path)
        for path in python_files("converters", "loaders")
        if path.stem in libraries - {"__init__"}
    ]


def test_only_the_command_line_speaks() -> None:
    """Only ioprof/cli prints, exits, and reads the environment or the arguments, with few
    exceptions."""
    silent = [path for path in PACKAGE if path.parts[:2] != ("ioprof", "cli")]
    found = {str(path): {what for what, _ in _speech(path)} for path in silent}
    assert MAY_SPEAK == {path: names for path, names in found.items() if names}


OF_OS_AND_SYS: Final = {
    "os.environ",
    "os.environb",
    "os.getenv",
    "os._exit",
    "sys.argv",
    "sys.exit",
    "sys.stdout",
    "sys.stderr",
}
SPEECH: Final = OF_OS_AND_SYS | {"print", "exit", "quit", "SystemExit"}


def _speech(path: Path) -> Iterator[tuple[str, ast.expr | ast.stmt]]:
    for node in ast.walk(syntax_tree(path)):
        if isinstance(node, ast.Attribute | ast.Name) and dotted_name(node) in SPEECH:
            yield dotted_name(node), node
        elif isinstance(node, ast.ImportFrom):
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from ((name, node) for name in names if name in OF_OS_AND_SYS)


def test_a_run_is_never_a_dict() -> None:
    """On the reader's side run.json and summary.json are the structs of `ioprof.format.run_record`:
    no parameter is a `dict[str, Any]`."""
    sides = {"analysis", "ingest", "jobs", "recording", "report"}
    found = {
        str(path)
        for path in PACKAGE
        if part(module_name(path)) in sides and any(_takes_dict(syntax_tree(path)))
    }
    assert MAY_TAKE_DICTS.keys() == found


def _takes_dict(tree: ast.Module) -> Iterator[bool]:
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            yield "dict[str, Any]" in ast.unparse(node.annotation)


def test_public_names_have_docstrings() -> None:
    """Every module and every public class or function has a docstring."""
    bare = [str(path) for path in PACKAGE if not ast.get_docstring(syntax_tree(path))]
    bare += [
        f"{path}:{node.lineno} {node.name}"
        for path in PACKAGE
        for node in _public(syntax_tree(path))
        if not ast.get_docstring(node)
    ]
    assert [] == bare


def _public(
    owner: ast.Module | ast.ClassDef,
) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for node in owner.body:
        if not isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ) or node.name.startswith("_"):
            continue
        if not any(
            dotted_name(mark).endswith(("overload", "override", ".setter"))
            for mark in node.decorator_list
        ):
            yield node
        if isinstance(node, ast.ClassDef):
            yield from _public(node)


def test_errors_are_named() -> None:
    """No bare `except:`, and no `raise Exception`."""
    found = []
    for path in python_files(*PACKAGES, "benchmarks"):
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, ast.ExceptHandler) and node.type is None:
                found.append(f"{path}:{node.lineno}: bare except")
            elif (
                isinstance(node, ast.Raise)
                and node.exc is not None
                and _raised(node.exc) in {"Exception", "BaseException"}
            ):
                found.append(f"{path}:{node.lineno}: nameless exception")
    assert [] == found


def _raised(node: ast.expr) -> str:
    return dotted_name(node.func if isinstance(node, ast.Call) else node)


@pytest.mark.parametrize(
    ("what", "pattern"), [("left open", LEFT_OPEN), ("somebody's path", HOME_PATH)]
)
def test_no_file_holds(what: str, pattern: re.Pattern[str]) -> None:
    """No markers of unfinished work, and no paths of a developer machine."""
    found = []
    for path in text_files():
        lines = (ROOT / path).read_text(errors="replace").splitlines()
        found += [
            f"{path}:{number}: {what}: {line.strip()[:80]}"
            for number, line in enumerate(lines, 1)
            if pattern.search(line)
        ]
    assert [] == found
