"""ioprof starts in every Python process of a job, and nothing else changes there."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hooked import SITE, environment, of_kind, recorded, run
from PIL import Image
from repository import PROGRAMS, ROOT

from ioprof.instrument.identity import rank_of

START = PROGRAMS / "hooked_start.py"


def found(spool: Path | None, *options: str, **more: str) -> dict[str, Any]:
    """What the process finds of itself."""
    text = run([*options, START], spool, **more)
    told: dict[str, Any] = json.loads(text.splitlines()[-1])
    return told


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with a sitecustomize of the user's own."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import sys\nWHO = 'the user'\nsys.user_was_here = True\n"
    )
    return folder


@pytest.mark.job
@pytest.mark.parametrize("option", ["-u", "-S", "-E", "-I", "-P", "-s", "-OO", "-Xutf8"])
def test_a_process_finds_itself_as_it_was(tmp_path: Path, option: str) -> None:
    """Search path, libraries, handlers, threads, open files: with any option of Python's that has
    to do with its start."""
    bare, hooked = found(None, option), found(tmp_path / "spool", option)
    if option == "-S":  # ioprof is not started there either, so nobody takes its folder away
        hooked["search path"].remove(str(SITE))
    assert bare == hooked


@pytest.mark.job
def test_the_users_sitecustomize_runs(tmp_path: Path, own: Path) -> None:
    """It is the module of that name, as without ioprof, wherever on the path it lies."""
    hooked = found(tmp_path / "spool", PYTHONPATH=f"{SITE}:{own}")
    assert "the user" == hooked["sitecustomize"]
    assert found(None, PYTHONPATH=str(own)) == hooked


@pytest.mark.job
def test_the_users_sitecustomize_fails_as_it_did(tmp_path: Path, own: Path) -> None:
    """Python reports an error in it, and goes on, in the same words."""
    (own / "sitecustomize.py").write_text("raise LookupError('mine')\n")
    bare = run(["-c", "pass"], None, PYTHONPATH=str(own))
    assert "LookupError: mine" in bare
    assert bare == run(["-c", "pass"], tmp_path / "spool", PYTHONPATH=f"{SITE}:{own}")


@pytest.mark.job
def test_ioprof_need_not_be_installed_where_the_job_runs(tmp_path: Path) -> None:
    """A Python of another environment finds ioprof beside its start, and its search path stays as
    it was."""
    python = Path(sys.base_prefix) / "bin" / "python3"
    if not python.exists() or sys.base_prefix == sys.prefix:
        pytest.skip(
            "this is no virtual environment, so there is no Python without ioprof beside it"
        )
    code = "import sys; before = sys.path[:]; import ioprof\nwith ioprof.span('decode'): pass\n"
    code += "assert before == sys.path; print(before)"
    spool = tmp_path / "spool"
    assert str(ROOT) not in run(["-c", code], spool, executable=str(python))
    assert 1 == len(of_kind(recorded(spool), "decode"))


@pytest.mark.job
@pytest.mark.parametrize("spool", ["missing", "file"])
def test_a_spool_that_cannot_be_written_does_not_break_the_job(tmp_path: Path, spool: str) -> None:
    """The job runs unrecorded; why is told to whoever asks by IOPROF_DEBUG."""
    (tmp_path / "file").touch()
    for debug in ("", "1"):
        environ = {
            **environment(None),
            "PYTHONPATH": str(SITE),
            "IOPROF_SPOOL": str(tmp_path / spool),
            "IOPROF_DEBUG": debug,
        }
        ended = subprocess.run(
            [sys.executable, "-c", "print('done')"],
            env=environ,
            capture_output=True,
            text=True,
            check=True,
        )
        assert "done\n" == ended.stdout
        assert ("is not recorded" in ended.stderr) == bool(debug)


@pytest.mark.job
def test_no_numbers_library_is_loaded(tmp_path: Path) -> None:
    """A process that decodes nothing and trains nothing gets none of the libraries that would."""
    run(
        ["-c", "import sys; assert not {'numpy', 'torch', 'PIL', 'polars'} & set(sys.modules)"],
        tmp_path / "spool",
    )


@pytest.mark.job
def test_hooks_can_be_left_out(tmp_path: Path) -> None:
    """ioprof's own job emits its spans itself: nothing is recorded for it."""
    program = """
from PIL import ImageFile
from ioprof.instrument.recorder import is_recording
print(is_recording(), hasattr(ImageFile.ImageFile.load, "_ioprof_observes"))
"""
    assert "True True" == run(["-c", program], tmp_path / "hooked").splitlines()[-1]
    assert (
        "False False"
        == run(["-c", program], tmp_path / "spool", IOPROF_HOOKS="off").splitlines()[-1]
    )
    assert [] == list((tmp_path / "spool").iterdir())


@pytest.mark.job
def test_modules_keep_their_loaders(tmp_path: Path) -> None:
    """A watched module has the loader that it would have had, and is reloaded and found as any
    other."""
    program = """
import importlib, importlib.machinery, importlib.util, inspect, sys
from PIL import ImageFile
loader = ImageFile.__spec__.loader
assert type(loader) is importlib.machinery.SourceFileLoader and not vars(loader).get("exec_module"), vars(loader)
assert ImageFile.__loader__ is loader
assert "def load(self)" in inspect.getsource(ImageFile.ImageFile.load)
assert ImageFile.ImageFile.load.__module__ == "PIL.ImageFile" and ImageFile.ImageFile.load.__qualname__ == "ImageFile.load"
importlib.util.find_spec("PIL.ImageFile")
importlib.reload(ImageFile)
assert hasattr(ImageFile.ImageFile.load, "_ioprof_observes")
"""  # noqa: E501
    run(["-c", program], tmp_path / "spool")


@pytest.mark.job
def test_children_of_every_kind_are_recorded(tmp_path: Path) -> None:
    """Forked by multiprocessing or by hand, or spawned: each decodes an image once."""
    image = tmp_path / "image.jpg"
    Image.effect_noise((300, 200), 50).save(image)
    spool = tmp_path / "spool"
    run([PROGRAMS / "hooked_children.py", image], spool)
    trace = recorded(spool)
    decodes = of_kind(trace, "decode")
    assert 4 == len(decodes) == decodes["pid"].n_unique()
    assert {"JPEG"} == set(decodes["name"])
    assert {"other"} == {process.role for process in trace.run.processes}
    assert all(process.spans or process.closed for process in trace.run.processes)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (-1, None)),
        ({"RANK": "3", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (3, "torch")),
        ({"OMPI_COMM_WORLD_RANK": "2", "PMIX_RANK": "1"}, (2, "mpi")),
        ({"MV2_COMM_WORLD_RANK": "5"}, (5, "mpi")),
        ({"PMI_RANK": "7", "SLURM_PROCID": "1", "SLURM_NTASKS": "8"}, (7, "pmi")),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "8"}, (1, "scheduler")),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (-1, None)),
        ({"SLURM_PROCID": "0"}, (-1, None)),
        ({"RANK": "none", "PMI_RANK": "4"}, (4, "pmi")),
        ({"RANK": "-1"}, (-1, None)),
        ({"RANK": "99999999999999"}, (-1, None)),
    ],
)
def test_the_rank_is_the_environments(
    environ: dict[str, str], expected: tuple[int, str | None]
) -> None:
    """torch's word before MPI's, MPI's before PMI's, and a scheduler's only where it started more
    than one task."""
    assert expected == rank_of(environ)
