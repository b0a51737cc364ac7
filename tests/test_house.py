"""The documents agree with the code: Makefile, README, CHANGELOG, constraints, notebooks, public
names."""

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import typer
from packaging.requirements import Requirement
from repository import PACKAGES, ROOT, module_name, python_files, text_files

import ioprof
from ioprof import cli
from ioprof.recording.run_folder import JOB_LOG, RUN_FILES

TARGETS: Final = {
    "help",
    "install",
    "demo",
    "notebook",
    "docs",
    "quick",
    "test",
    "test-all",
    "faults",
    "recordings",
    "test-gpu",
    "check",
    "bench",
    "wheel",
    "compat",
    "trace-processor",
    "clean",
}


DOCUMENTS: Final = [path for path in text_files() if path.suffix == ".md"]


@cache
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@cache
def commands() -> dict[str, set[str]]:
    """Each command, with the names of its subcommands (`convert imagenet`), and all its options."""
    found = {}
    for name, command in typer.main.get_command(cli._app()).commands.items():
        parts = [command, *getattr(command, "commands", {}).values()]
        found[name] = {
            option
            for part in parts
            for parameter in part.params
            for option in (*parameter.opts, *parameter.secondary_opts)
        }
    return found


def code_in(markdown: str) -> list[str]:
    """The lines of fenced and indented blocks, with continuation lines joined, and inline code."""
    markdown = markdown.replace("\\\n", " ")
    fenced = re.findall(r"^```[^\n]*\n(.*?)^```", markdown, flags=re.DOTALL | re.MULTILINE)
    rest = re.sub(r"^```[^\n]*\n.*?^```", "", markdown, flags=re.DOTALL | re.MULTILINE)
    indented = re.findall(r"^ {4}(.*)", rest, flags=re.MULTILINE)
    return [*"\n".join(fenced).splitlines(), *indented, *re.findall(r"`([^`]+)`", rest)]


def commands_in(markdown: str) -> list[tuple[str, list[str]]]:
    """Every `ioprof VERB ...` in the code of a text: the verb, and the options before the command
    of the user."""
    found = []
    for line in (re.sub(r"(^|\s)#.*", "", line) for line in code_in(markdown)):
        for verb, rest in re.findall(
            r"(?<!from )(?<!import )(?<![\w./-])ioprof[ \t]+([a-z][a-z-]*)\b([^|;&`]*)", line
        ):
            words = re.split(r"\s--(?:\s|$)", rest)[0].split()
            found.append((verb, [word.split("=")[0] for word in words if word.startswith("--")]))
    return found


def test_the_commands_of_a_text_are_found_in_code_only() -> None:
    """Prose and Python imports are not commands, and what follows ` -- ` is the command of the
    user."""
    text = (
        "ioprof shows it: `ioprof run --ranks 2`.\n\n    $ ioprof report runs/a --json  # ioprof"
        " x\n\n"
    )
    text += (
        "```\nfrom ioprof import span\nioprof record --out \\\n  a -- python train.py --lr 1\n```\n"
    )
    assert [("record", ["--out"]), ("report", ["--json"]), ("run", ["--ranks"])] == sorted(
        commands_in(text)
    )


@pytest.mark.job
def test_make_bench_starts_no_program_that_needs_arguments() -> None:
    """Those that another benchmark starts do. What `make test-gpu` runs is no part of it."""
    if shutil.which("make") is None:
        pytest.skip("no make on this machine")
    listed = subprocess.run(
        ["make", "-n", "bench"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "benchmarks/what_if.py" in listed
    assert "gpu_blocks" not in listed
    texts = [path.read_text() for path in (ROOT / "benchmarks").glob("*.py")]
    started = {name for text in texts for name in re.findall(r"with_name\(\"(\w+\.py)\"\)", text)}
    assert "what_if_job.py" in started
    assert not [name for name in started if f"benchmarks/{name}" in listed]


@pytest.mark.job
def test_make_alone_shows_the_targets() -> None:
    """All existing targets with their description, and no others."""
    if shutil.which("make") is None:
        pytest.skip("no make on this machine")
    shown = subprocess.run(
        ["make", "-C", ROOT, "--no-print-directory"], capture_output=True, text=True, check=True
    ).stdout
    assert set(re.findall(r"^ *make ([\w-]+) +\w", shown, flags=re.MULTILINE)) == TARGETS


def test_continuous_integration_calls_the_same_targets() -> None:
    """CI runs the same commands as a developer."""
    script = (ROOT / ".ci" / "run").read_text()
    called = {
        word
        for line in script.splitlines()
        if line.startswith("make ")
        for word in shlex.split(line.split("|")[0])
    }
    assert set() == {"install", "check", "test-all"} - called


def test_every_command_that_readmes_and_documents_name_is_real() -> None:
    """They mention no command or option that does not exist."""
    pages = (ROOT / "README.md", ROOT / "README.ja.md", *(ROOT / "docs").glob("*.md"))
    named = commands_in("\n\n".join(page.read_text() for page in pages))
    assert set() == {verb for verb, _ in named} - set(commands())
    wrong = [
        f"ioprof {verb} {option}"
        for verb, options in named
        for option in options
        if option not in commands()[verb]
    ]
    assert [] == wrong


def test_the_readme_names_every_command() -> None:
    """Users find only commands that the README shows."""
    assert set() == set(commands()) - {
        verb for verb, _ in commands_in((ROOT / "README.md").read_text())
    }


def test_the_guide_names_every_file_of_a_run() -> None:
    """A run folder contains no file that the guide does not explain."""
    text = (ROOT / "docs" / "guide.md").read_text()
    listed = text[text.index("## What a run leaves") : text.index("    ioprof report RUN")]
    assert {*RUN_FILES, JOB_LOG} == set(re.findall(r"\b\w+\.(?:json|parquet|html|log)\b", listed))


def test_the_public_names_are_those_in_all() -> None:
    """`__all__` lists exactly the public names of `import ioprof`."""
    own = {
        name
        for name, value in vars(ioprof).items()
        if getattr(value, "__module__", "").startswith("ioprof")
    }
    public = {name for name in own if not name.startswith("_")}
    assert set() == public - set(ioprof.__all__)
    assert [] == [name for name in ioprof.__all__ if not hasattr(ioprof, name)]
    assert sorted(ioprof.__all__) == sorted(set(ioprof.__all__))


def test_the_reference_has_each_public_name() -> None:
    """What `import ioprof` offers, but the trace, of which `Run` is made."""
    text = (ROOT / "docs" / "reference.md").read_text()
    shown = {
        name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)$", text, flags=re.MULTILINE)
    }
    assert {"Trace"} == set(ioprof.__all__) - shown


@pytest.mark.parametrize(
    "package",
    sorted(module_name(path) for path in python_files(*PACKAGES) if path.name == "__init__.py"),
)
def test_what_a_package_exports_exists(package: str) -> None:
    """Every name in an `__all__` exists."""
    module = importlib.import_module(package)
    assert [] == [name for name in getattr(module, "__all__", ()) if not hasattr(module, name)]


def test_the_version_is_said_once_and_the_changelog_knows_it() -> None:
    """pyproject.toml, `ioprof.__version__` and the newest heading of the CHANGELOG agree."""
    headings = re.findall(
        r"^## \[?(\d[^\]\s]*)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE
    )
    assert [project()["version"]] * 2 == [ioprof.__version__, headings[0]]


def test_the_tree_in_the_package_readme_is_that_of_the_package() -> None:
    """Each part of the package has a line in the tree, and every file in the tree exists."""
    text = (ROOT / "ioprof" / "README.md").read_text()
    tree = text[text.index("## Where things are") : text.index("## Who may import whom")]
    lines = [line.split() for line in tree.splitlines() if line.startswith("      ")]
    shown = {words[0].strip("/") for words in lines}
    there = {
        path.name
        for path in (ROOT / "ioprof").iterdir()
        if path.suffix == ".py" or (path.is_dir() and path.name != "__pycache__")
    }
    assert there == shown
    named = {
        (words[0], file)
        for words in lines
        if "." not in words[0]
        for file in re.findall(r"\b\w+\.(?:py|c|h|toml|md)\b", " ".join(words[1:]))
    }
    assert set() == {
        (folder, file) for folder, file in named if not (ROOT / "ioprof" / folder / file).is_file()
    }


def test_the_package_readme_names_files_and_functions_that_exist() -> None:
    """In the life of a span and in the walks, every `path` is a file, and every `path:name` is
    defined in it."""
    text = (ROOT / "ioprof" / "README.md").read_text()
    places = places_in(text[text.index("## The life of one span") : text.index("## Glossary")])
    assert 50 < len(places)
    assert [] == [place for place in places if not is_defined(*place)]


def test_the_package_readme_names_modules_of_the_large_folders() -> None:
    """In the table of the large folders every name, in its folder, is a module, a folder or a
    pattern that fits some."""
    text = (ROOT / "ioprof" / "README.md").read_text()
    missing, folder = [], ""
    table = text[text.index("| folder |") : text.index("## Who may import whom")]
    for first, cell in re.findall(
        r"^\| (\S*) *\| [^|]+ \| ([^|]*`[^|]*) \|$", table, flags=re.MULTILINE
    ):
        folder = first or folder
        names = re.findall(r"`([\w/*.]+)`", cell)
        parts = [
            (
                name,
                *(ROOT / "ioprof" / folder).glob(name),
                *(ROOT / "ioprof" / folder).glob(f"{name}.py"),
            )
            for name in names
        ]
        missing += [f"{folder}/{name}" for name, *found in parts if not found]
    assert folder == "native"
    assert [] == missing


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "decisions").glob("*.md")), ids=lambda page: page.stem
)
def test_the_decisions_name_files_and_functions_that_exist(page: Path) -> None:
    """What a decision names of the project, from the top of the repository or from ioprof/, is
    there: it is of today's code."""
    places = [(path, name) for path, name in places_in(page.read_text()) if is_of_project(path)]
    assert [] == [place for place in places if not is_defined(*place)]


def test_the_guide_names_files_that_exist() -> None:
    """Every file of source, test or document in the table of CONTRIBUTING.md is there."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = "".join(line for line in text.splitlines(keepends=True) if line.startswith("| "))
    named = {path for path, _ in places_in(table) if "NAME" not in path}
    assert 100 < len(named)
    folders = (ROOT, ROOT / "ioprof", ROOT / "tests")
    assert set() == {
        path for path in named if not any((folder / path).is_file() for folder in folders)
    }


@pytest.mark.parametrize("page", DOCUMENTS, ids=str)
def test_the_links_of_documents_lead_to_files(page: Path) -> None:
    """A relative link of a document leads to a file or folder of the checkout, and to a heading
    where it names one."""
    text = re.sub(
        r"^(```.*?^```| {4}[^\n]*)", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL
    )
    missing = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            missing.append(link)
    assert [] == missing


def anchors(markdown: str) -> set[str]:
    """The anchors of headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+?) *$", markdown, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def places_in(markdown: str) -> list[tuple[str, str]]:
    """Every `path` of a source or document in a text, with the name behind it in `path:name`, else
    an empty one."""
    return re.findall(r"`([\w/.-]+\.(?:py|c|h|js|toml|md))(?::(\w+))?`", markdown)


def is_of_project(path: str) -> bool:
    """Whether the path begins with a folder at the top of the repository or of ioprof."""
    first, slash, _ = path.partition("/")
    return bool(slash) and any((folder / first).is_dir() for folder in (ROOT, ROOT / "ioprof"))


def is_defined(path: str, name: str) -> bool:
    """Whether the file is there, at the top of the repository or in ioprof, and defines that name
    if it is not empty."""
    file = next(
        (folder / path for folder in (ROOT / "ioprof", ROOT) if (folder / path).is_file()), None
    )
    definition = rf"^\s*(?:async )?def {name}\(" if path.endswith(".py") else rf"^[a-z].*\b{name}\("
    return file is not None and (
        not name or bool(re.search(definition, file.read_text(), flags=re.MULTILINE))
    )


def test_the_constraints_pin_every_dependency() -> None:
    """Each requirement of pyproject.toml has one exact version in constraints.txt, and that version
    satisfies it."""
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    pins = {_canonical(pin.name): pin for pin in map(Requirement, lines)}
    assert len(pins) == len(lines)
    assert [] == [
        str(pin)
        for pin in pins.values()
        if not re.fullmatch(r"==[\w.]+", str(pin.specifier)) or pin.url
    ]
    assert "==2.13.0" == str(pins["torch"].specifier)
    wanted = [
        *project()["dependencies"],
        *(name for extra in project()["optional-dependencies"].values() for name in extra),
    ]
    loose = [text for text in wanted if not _is_pinned(Requirement(text), pins)]
    assert [] == loose


def test_notebooks_are_committed_without_outputs() -> None:
    """Outputs in git cannot be reproduced, and their diffs cannot be read."""
    dirty = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text())["cells"]
        dirty += [
            path.name
            for cell in cells
            if cell.get("outputs") or cell.get("execution_count") is not None
        ]
    assert [] == dirty


def test_the_licence_is_the_one_that_the_package_names() -> None:
    """The full text is present, not only its name."""
    text = (ROOT / "LICENSE").read_text()
    assert "Apache-2.0" == project()["license"]
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_pinned(requirement: Requirement, pins: dict[str, Requirement]) -> bool:
    pin = pins.get(_canonical(requirement.name))
    return pin is not None and requirement.specifier.contains(str(pin.specifier).removeprefix("=="))


@pytest.mark.job(every=4)
def test_the_site_of_the_documents_is_built(tmp_path: Path) -> None:
    """Each page of the navigation exists, the reference has the docstrings, and no page asks
    another host for a script or a style."""
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("no mkdocs on this machine: pip install 'ioprof[docs]'")
    build = tmp_path / "build"
    for path in (path for path in text_files() if path.suffix == ".md"):
        (build / "docs" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, build / "docs" / path)
    (tmp_path / "docs" / "site").mkdir(parents=True)
    shutil.copy(ROOT / "docs" / "site" / "mkdocs.yml", tmp_path / "docs" / "site")
    words = [sys.executable, "-m", "mkdocs", "build", "--quiet", "-f", "docs/site/mkdocs.yml"]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "'nav' configuration" not in ended.stderr
    reference = (build / "site" / "docs" / "reference.html").read_text()
    assert 'id="ioprof.api.record"' in reference
    assert "Run any command, unchanged" in reference
    for page in (build / "site").rglob("*.html"):
        assert not re.findall(r'<(?:script|link)[^>]+(?:src|href)="https?://', page.read_text())
