"""Where people work besides the command line: loops of libraries, trackers of experiments, and
`ioprof.toml`; each with the real library."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest
from repository import PROGRAMS, ROOT

import ioprof
from ioprof.cli import main
from ioprof.format.schema import CAUSES
from ioprof.instrument.hooks.own_batches import _num_samples
from ioprof.integrations.scalars import scalars
from ioprof.integrations.trackers import to_tensorboard

DEMO = ROOT / "tests" / "data" / "demo" / "files"


def test_scalars_are_those_of_the_summary() -> None:
    """The shares sum to 1; what was not measured is left out."""
    found = scalars(ioprof.load(DEMO).summary)
    shares = {name: value for name, value in found.items() if "/share/" in name}
    assert {f"ioprof/share/{cause}" for cause in CAUSES} >= shares.keys()
    assert sum(shares.values()) == pytest.approx(1)


@pytest.mark.filterwarnings("default")  # of the library
def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    """By its own reader."""
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = ioprof.load(DEMO)
    to_tensorboard(run, tmp_path, step=7)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    for name, value in scalars(run.summary).items():
        [event] = events.Scalars(name)
        assert (event.step, event.value) == (7, pytest.approx(value, rel=1e-6))
    assert "ioprof/report/text_summary" in events.Tags()["tensors"]


@pytest.mark.job(every=4)
@pytest.mark.filterwarnings("default")  # of the library
def test_wandb_takes_them_offline(tmp_path: Path) -> None:
    """Its summary and its notes have them; nothing is sent."""
    pytest.importorskip("wandb", reason="needs wandb")
    program = f"""
import ioprof, wandb
from ioprof.integrations.trackers import to_wandb
tracked = wandb.init(project="test", mode="offline")
to_wandb(ioprof.load({str(DEMO)!r}), tracked)
print(tracked.summary["ioprof/share/decode"], tracked.notes.startswith("## "))
tracked.finish()
"""
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    share, has_notes = said.splitlines()[0].split()
    assert float(share) == pytest.approx(scalars(ioprof.load(DEMO).summary)["ioprof/share/decode"])
    assert has_notes == "True"


@pytest.mark.job(every=4)
def test_mlflow_has_them_in_its_store(tmp_path: Path) -> None:
    """In a store of files; read back by its own client."""
    pytest.importorskip("mlflow", reason="needs mlflow-skinny")
    program = f"""
import json, ioprof, mlflow
from ioprof.integrations.trackers import to_mlflow
mlflow.set_tracking_uri("file:store")
with mlflow.start_run() as tracked:
    to_mlflow(ioprof.load({str(DEMO)!r}), tracked)
kept = mlflow.tracking.MlflowClient().get_run(tracked.info.run_id)
print(json.dumps(kept.data.metrics))
print(mlflow.artifacts.load_text(f"{{kept.info.artifact_uri}}/ioprof/report.md")[:3])
"""
    said = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"MLFLOW_ALLOW_FILE_STORE": "true"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert scalars(ioprof.load(DEMO).summary) == json.loads(said[0])
    assert said[1] == "## "


STEPS: Final = 12
"""Of `train_with_callback.py`."""
LIBRARIES: Final = {"lightning": ("lightning",), "transformers": ("transformers", "accelerate")}


def train(library: str, *words: object, cwd: Path, under: tuple[str, ...] = ()) -> Any:
    """Whether the callback of a library has a run, and what the library logged."""
    if missing := [name for name in LIBRARIES[library] if not find_spec(name)]:
        pytest.skip(f"needs {', '.join(missing)}")
    program = [sys.executable, PROGRAMS / "train_with_callback.py", library, *words]
    ended = subprocess.run(
        [*under, *map(str, program)],
        cwd=cwd,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == ended.returncode, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.job(every=4)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_callback_records_a_training(library: str, tmp_path: Path) -> None:
    """All of its steps; the library logs the shares, at the last step."""
    has_run, logged = train(library, tmp_path / "run", cwd=tmp_path)
    run = ioprof.load(tmp_path / "run")
    assert has_run
    assert ("complete", STEPS) == (run.trace.run.status, run.summary.steps.count)
    assert STEPS == logged.pop("step")
    assert scalars(run.summary) == pytest.approx(logged)


@pytest.mark.job(every=4)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_callback_in_a_recorded_job_does_nothing(library: str, tmp_path: Path) -> None:
    """The run is that of `ioprof record`."""
    record = (sys.executable, "-m", "ioprof", "record", "--quiet", "--out", "run", "--")
    assert [False, {}] == train(library, tmp_path / "own", cwd=tmp_path, under=record)
    assert not (tmp_path / "own").exists()
    assert STEPS == ioprof.load(tmp_path / "run").summary.steps.count


@pytest.mark.job(every=4)
def test_a_fit_that_raises_is_a_run_that_failed(tmp_path: Path) -> None:
    """With the steps until then, and what was raised."""
    has_run, logged = train("lightning", tmp_path / "run", "raise", cwd=tmp_path)
    run = ioprof.load(tmp_path / "run")
    assert (True, {}) == (has_run, logged)
    assert "failed" == run.trace.run.status
    assert ["a batch is wrong"] == [each.what.partition(": ")[2] for each in run.trace.run.failures]
    assert 5 == run.summary.steps.count


class Array:
    """What has a shape."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (Array(8, 3), 8),
        ((Array(8, 3), Array(8)), 8),
        ({"x": Array(8, 3), "y": Array(8), "name": "a"}, 8),
        ((Array(8, 3), Array(4)), -1),
        ([Array(3, 9)] * 8, -1),
        ([Array(1)] * 100, -1),
        ((), -1),
        ("text", -1),
        (Array(), -1),
        (type("Odd", (), {"shape": 5}), -1),
        (type("Odd", (), {"shape": property(lambda _: 1 / 0)})(), -1),
        (None, -1),
    ],
)
def test_the_samples_of_an_own_batch_are_its_first_dimension(batch: object, samples: int) -> None:
    """Where all arrays agree; else they are unknown, and never wrong."""
    assert _num_samples(batch) == samples


def test_the_file_of_defaults_stands_behind_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It gives options, also of verbs, and the store of all commands; a wrong name is one line that
    names the nearest."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "ioprof.toml"
    file.write_text('store = "kept"\n[report]\nmarkdown = true\n[history.trend]\nhtml = "t.html"\n')
    assert main(["report", str(DEMO)]) == 0
    assert capsys.readouterr().out.startswith("## ")
    assert main(["history", "add", str(DEMO)]) == 0
    assert main(["history", "trend"]) == 0
    assert (tmp_path / "kept" / "runs.sqlite").exists()
    assert (tmp_path / "t.html").exists()
    assert main(["history", "list", "--store", "other"]) == 2
    capsys.readouterr()
    for text, said in (
        ("[reprot]\n", "did you mean report?"),
        ("[report]\nmarkdwon = true\n", "did you mean markdown?"),
        ("stroe = 1\n", "did you mean store?"),
        ("[report\n", "cannot be read"),
    ):
        file.write_text(text)
        assert main(["report", str(DEMO)]) == 2
        assert said in capsys.readouterr().err
