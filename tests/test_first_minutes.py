"""A new user's first lines, as the README has them: from `git clone` to a report on their own
script."""

import os
import re
import shutil
import subprocess
import venv
from pathlib import Path

import pytest
from installing import borrow_dependencies, copy_checkout, succeed
from repository import ROOT

import ioprof

TRAIN = """
import torch

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((8,), float(index))

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for samples in torch.utils.data.DataLoader(Samples(), batch_size=8, num_workers=1):
    optimizer.zero_grad()
    model(samples).mean().backward()
    optimizer.step()
print("trained")
"""
"""The user's own script."""


def readme_lines() -> str:
    """The three lines, exactly as they stand."""
    text = (ROOT / "README.md").read_text()
    found = re.search(
        r"<!-- first minutes -->\n```sh\n(.*?)```\n<!-- end first minutes -->",
        text,
        flags=re.DOTALL,
    )
    assert found, "the README has no first minutes"
    return found[1]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git repository that holds the checkout under test, changes that are not committed
    included."""
    if shutil.which("git") is None:
        pytest.skip("no git on this machine")
    folder = copy_checkout(tmp_path_factory.mktemp("first") / "repository")
    # of a worktree, a file that leads to another repository
    (folder / ".git").unlink(missing_ok=True)
    git = (
        "git",
        "-c",
        "user.name=nobody",
        "-c",
        "user.email=nobody@localhost",
        "-c",
        "init.defaultBranch=main",
    )
    for arguments in (
        ("init", "--quiet"),
        ("add", "--all"),
        ("commit", "--quiet", "--message", "all"),
    ):
        succeed(*git, *arguments, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def own_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment with pip, and what ioprof depends on, without ioprof: nothing is
    fetched from a network."""
    path = tmp_path_factory.mktemp("first") / "environment"
    venv.create(path, with_pip=True, symlinks=True)
    site = next((path / "lib").glob("python*")) / "site-packages"
    # of Python 3.11's own; an isolated build would fetch a newer one
    for old in site.glob("setuptools*"):
        shutil.rmtree(old)
    borrow_dependencies(path)
    return path


@pytest.mark.system(every=3)
def test_the_three_lines_of_the_readme_end_in_a_report(
    repository: Path, own_environment: Path, tmp_path: Path
) -> None:
    """In a fresh environment, the first in the checkout and the others beside the script: its run
    is a run folder, and its page is there."""
    (tmp_path / "train.py").write_text(TRAIN)
    activate = f". {own_environment}/bin/activate"
    variables = {
        "HOME": str(tmp_path),
        "PIP_NO_INDEX": "1",  # offline: its dependencies are there already
        # pip reads this one the other way round: the build uses the setuptools that is there
        "PIP_NO_BUILD_ISOLATION": ("0"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in {"PYTHONPATH", "VIRTUAL_ENV", "BROWSER", "DISPLAY", "WAYLAND_DISPLAY"}
    }
    install, *others = readme_lines().splitlines()
    lines = "\n".join(["set -e", activate, install, f"cd {tmp_path}", *others])
    ended = subprocess.run(
        ["sh", "-c", lines],
        cwd=repository,
        env={**inherited, **variables},
        capture_output=True,
        text=True,
        timeout=280,
    )

    assert 0 == ended.returncode, f"{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"
    assert "trained" in ended.stdout
    assert ["complete", 0] == [(run := ioprof.load(tmp_path / "run").run).status, run.exit_code]
    assert "</html>" in (tmp_path / "run" / "report.html").read_text()[-100:]
    assert f"{tmp_path}/run/report.html" in ended.stdout
    installed = succeed(
        own_environment / "bin" / "python",
        "-c",
        "import ioprof; print(ioprof.__file__)",
        cwd=tmp_path,
    )
    assert Path(installed.strip()).is_relative_to(own_environment)


def test_the_environment_that_make_makes_is_the_one_that_the_readme_activates() -> None:
    """`make demo` installs into the folder of which the next line puts the programs on the PATH."""
    folder = re.search(r"^VENV \?= (\S+)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert folder
    lines = [
        line.split("#")[0].strip()
        for line in (ROOT / "README.md").read_text().splitlines()
        if line.startswith("    ")
    ]
    first = lines.index("make demo")
    assert f". {folder[1]}/bin/activate" == lines[first + 1]
    assert lines[first + 2].startswith("ioprof ")
