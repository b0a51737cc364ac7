"""Where people work besides the command line: loops of libraries, trackers of experiments, and
`ioprof.toml`; each with the real library."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

import ioprof
from ioprof.cli import main
from ioprof.format.schema import CAUSES
from ioprof.instrument.hooks.own_batches import _num_samples
from ioprof.integrations.scalars import scalars
from ioprof.integrations.trackers import to_tensorboard

DEMO = ROOT / "tests" / "data" / "demo" / "files"
DATA = """
import sys, torch
class Samples(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return {"x": torch.ones(4) * i, "labels": torch.ones(1)}
class Model(torch.nn.Module):
    def __init__(self): super().__init__(); self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels): return {"loss": self.layer(x).mean()}
"""
LIGHTNING = """
import lightning
from lightning.pytorch.loggers import CSVLogger
from ioprof.integrations.lightning import ProfileCallback
class Module(lightning.LightningModule):
    def __init__(self): super().__init__(); self.model = Model()
    def training_step(self, batch, index): return self.model(**batch)["loss"]
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), 0.01)
callback = ProfileCallback("run")
trainer = lightning.Trainer(max_epochs=1, callbacks=[callback], logger=CSVLogger("logs"), accelerator="cpu",
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Module(), torch.utils.data.DataLoader(Samples(), 4))
print(callback.run and callback.run.summary.steps.count)
"""  # noqa: E501
TRANSFORMERS = """
import transformers
from ioprof.integrations.transformers import ProfileCallback
callback = ProfileCallback("run")
arguments = transformers.TrainingArguments("out", per_device_train_batch_size=4, num_train_epochs=1, report_to=[],
    save_strategy="no", use_cpu=True, disable_tqdm=True)
trainer = transformers.Trainer(Model(), arguments, train_dataset=Samples(), callbacks=[callback])
trainer.train()
assert "ioprof/share/compute" in trainer.state.log_history[-1] or callback.run is None
print(callback.run and callback.run.summary.steps.count)
"""  # noqa: E501


@pytest.mark.job(every=4)
@pytest.mark.parametrize(
    ("library", "program"), [("lightning", LIGHTNING), ("transformers", TRANSFORMERS)]
)
def test_a_callback_records_the_training(library: str, program: str, tmp_path: Path) -> None:
    """Each step is in the run, whose shares are in the log; under `ioprof record` it does
    nothing."""
    pytest.importorskip(library, reason=f"needs {library}")
    (tmp_path / "train.py").write_text(DATA + program)
    python = [sys.executable, "train.py"]
    said = subprocess.run(python, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1] == "16"
    assert ioprof.load(tmp_path / "run").summary.steps.count == 16
    if library == "lightning":
        [log] = (tmp_path / "logs").rglob("metrics.csv")
        [row] = csv.DictReader(log.open())
        assert float(row["ioprof/samples_per_s"]) > 0
    record = [sys.executable, "-m", "ioprof", "record", "--out", "recorded", "--quiet", "--"]
    said = subprocess.run(
        [*record, *python], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert said.splitlines()[-1] == "None"


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
