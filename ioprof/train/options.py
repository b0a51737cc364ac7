"""Options of `ioprof run` that describe the training job; a preset may have each of them."""

from dataclasses import dataclass
from typing import Annotated, Final

from ioprof.loaders import LOADERS
from ioprof.loaders.base import LoadingOptions
from ioprof.options import Option
from ioprof.train.accelerators.exchange import SCHEMES
from ioprof.train.copies import COPIES
from ioprof.train.models import MODELS
from ioprof.train.parallelism import DATA, PARALLEL

_PANEL: Final = "Training"


def _one_of(about: str, choices: tuple[str, ...], unset: str = "") -> Option:
    return Option(f"{about}: {', '.join(choices)}.", _PANEL, choices=choices, unset=unset)


@dataclass(frozen=True, kw_only=True)
class JobOptions(LoadingOptions):
    """The training job, as it is asked for."""

    loader: Annotated[
        str,
        Option(
            f"One of {', '.join(LOADERS)}.",
            "Loader",
            choices=tuple(LOADERS),
            unset="the dataset's layout",
        ),
    ] = ""
    model: Annotated[
        str,
        Option(f"One of {', '.join(MODELS)}.", _PANEL, choices=tuple(MODELS), unset="the device's"),
    ] = ""
    device: Annotated[
        str,
        Option(
            "cpu, cuda, or emulated:NAME (step times from that device's published rate).", _PANEL
        ),
    ] = "emulated:a100"
    ranks: Annotated[
        int,
        Option("Training processes; under a launcher, the number of its tasks.", _PANEL, least=1),
    ] = 1
    ranks_per_node: Annotated[
        int,
        Option(
            "Emulated device: ranks that share a node and its faster link.",
            _PANEL,
            least=1,
            unset="all",
        ),
    ] = 0
    batch_size: Annotated[int, Option("Samples per step and rank.", _PANEL, least=1)] = 64
    steps: Annotated[int, Option("Steps to train.", _PANEL, least=1, unset="one epoch")] = 0
    epochs: Annotated[
        int | None, Option("Epochs to train, instead of --steps.", _PANEL, least=1)
    ] = None
    predict_epochs: Annotated[
        int | None,
        Option(
            "Predict the time of this many epochs, from a run of two (or of --epochs, --steps).",
            _PANEL,
            least=2,
        ),
    ] = None
    as_of: Annotated[
        int | None,
        Option(
            "With --predict-epochs: samples of the whole dataset, of which this one is a part.",
            _PANEL,
            least=1,
        ),
    ] = None
    copy: Annotated[str, _one_of("How batches get to the device", COPIES)] = COPIES[0]
    exchange: Annotated[str, _one_of("Gradient exchange of an emulated device", tuple(SCHEMES))] = (
        "ring"
    )
    bf16: Annotated[
        bool | None, Option("Compute in bfloat16 (autocast).", _PANEL, unset="on a GPU")
    ] = None
    channels_last: Annotated[
        bool | None, Option("Memory order of images and weights.", _PANEL, unset="on a GPU")
    ] = None
    parallel: Annotated[
        str,
        _one_of("Parallelism, pipeline and fsdp on --device cpu", PARALLEL),
    ] = DATA
    microbatches: Annotated[
        int, Option("Parts of a batch in a pipeline.", _PANEL, least=1, unset="2 per stage")
    ] = 0
    threads: Annotated[
        int,
        Option(
            "Threads of a rank's computation on the CPU.",
            _PANEL,
            least=1,
            unset="the cores divided among the ranks",
        ),
    ] = 0
    probe_network: Annotated[
        bool, Option("Measure the network between the ranks before the first step.", _PANEL)
    ] = False
    eval_every: Annotated[
        str | int | None, Option("Evaluate every N steps, or every N epochs (2epochs).", _PANEL)
    ] = None
    checkpoint_every: Annotated[
        str | int | None,
        Option("Write a checkpoint every N steps, or every N epochs (2epochs).", _PANEL),
    ] = None
    dataset_scale: Annotated[
        str,
        Option("Read a multiple of the dataset: 0.5x, 2x, 50%; made next to it, once.", "Storage"),
    ] = "1x"
