"""What a training job is to do: read once at the edge, handed to every rank as JSON."""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ioprof.dataset import Dataset
from ioprof.loaders.base import DECODES, LMDB_READS, ON_CORRUPT, READAHEADS, LoaderOptions
from ioprof.loaders.filling import FillingOptions
from ioprof.train.copies import COPIES
from ioprof.train.models import ModelFacts, default_model, model_facts
from ioprof.train.parallelism import DATA, FSDP, PIPELINE
from ioprof.train.recipe import Recipe

_PATHS: Final = ("spool", "dataset", "local_copy", "evaluation_dataset", "checkpoints", "meeting")


def loading_path(spool: Path, rank: int) -> Path:
    """Where a rank leaves how its loader worked, and which images it left out."""
    return spool / f"loading-{rank}.json"


def network_path(spool: Path) -> Path:
    """Where a rank leaves what it found of the network."""
    return spool / "network.json"


@dataclass(frozen=True)
class JobConfig:
    """The built-in training job."""

    loader: str
    device: str
    """`emulated:NAME`, `cpu` or `cuda`."""
    ranks: int
    batch_size: int
    """Samples per step and rank."""
    workers: int
    """Loader processes per rank."""
    steps: int
    seed: int
    """Of the order of the samples, of their crops, and of the first weights."""
    spool: Path
    """Node-local folder that takes the capture files while the job runs."""
    dataset: Path | None = None
    lmdb_read: str = LMDB_READS[0]
    """How the `lmdb` loader gets at a value."""
    lmdb_readahead: str = READAHEADS[0]
    """Whether the kernel reads ahead in its memory map."""
    decode: str = DECODES[0]
    """What is decoded of a JPEG."""
    on_corrupt: str = ON_CORRUPT[0]
    """What happens with an image that cannot be decoded, or of which libjpeg warns."""
    local_copy: Path | None = None
    """Of the dataset, on this node: what loaders fill while they read (see `ioprof.loaders.filling`)."""
    model: str = ""
    """One of `models.MODELS`; empty: that of the device."""
    copy: str = COPIES[0]
    """How batches get to the device, one of `copies.COPIES`."""
    exchange: str = "ring"
    """Of an emulated device: how gradients are exchanged, one of `exchange.SCHEMES`."""
    ranks_per_node: int = 0
    """Of an emulated device: ranks that its faster link connects. 0: all."""
    channels_last: bool = False
    """Of a real device: images and weights in memory with the channels next to each other."""
    bf16: bool = False
    """Of a real device: matrix products and convolutions in bfloat16 (autocast)."""
    recipe: Recipe = field(default_factory=Recipe)
    steps_per_epoch: int = 0
    """0: without a dataset there are no epochs."""
    first_step: int = 0
    """More than 0: the job goes on from the checkpoint of that step."""
    evaluation_dataset: Path | None = None
    evaluate_every: int = 0
    """Steps between evaluations; 0: none."""
    checkpoints: Path | None = None
    """Folder of checkpoints; None: none are written."""
    checkpoint_every: int = 0
    """Steps between checkpoints."""
    first_rank: int = 0
    """The first of the ranks that this ioprof starts."""
    is_task: bool = False
    """A launcher starts one ioprof for each rank, and this one starts rank `first_rank` alone."""
    meeting: Path | None = None
    """A folder of all hosts, where the ranks of a launcher find each other."""
    predict_epochs: int = 0
    """Of how many epochs the report predicts the time; 0: of none."""
    probe_network: bool = False
    """Measure the network between the ranks before the first step."""
    job: str | None = None
    """What distinguishes this job of a launcher from others."""
    parallel: str = DATA
    """One of `parallelism.PARALLEL`."""
    microbatches: int = 0
    """Of a pipeline: parts of a batch that go through its stages one after the other."""
    threads: int = 0
    """Of a rank's computation on the CPU; 0: the cores of the host are divided among its ranks."""

    def save(self, path: Path) -> None:
        """Write the config for the ranks to read."""
        keys = asdict(self)
        path.write_text(json.dumps({key: str(value) if isinstance(value, Path) else value for key, value in keys.items()}))

    @classmethod
    def load(cls, path: Path) -> "JobConfig":
        """The config that `save` wrote."""
        keys: dict[str, Any] = json.loads(path.read_text())
        paths = {key: Path(keys[key]) for key in _PATHS if keys[key] is not None}
        return cls(**{**keys, **paths, "recipe": Recipe(**keys["recipe"])})

    @property
    def own_ranks(self) -> range:
        """The ranks that this ioprof starts."""
        return range(self.first_rank, self.first_rank + (1 if self.is_task else self.ranks))

    @property
    def model_facts(self) -> ModelFacts:
        """Of the model that is trained."""
        return model_facts(self.model or default_model(self.device))

    @property
    def is_pipeline(self) -> bool:
        """Whether the ranks are stages; one rank has the whole model."""
        return self.parallel == PIPELINE and self.ranks > 1

    @property
    def is_sharded(self) -> bool:
        """Whether the parameters are divided among the ranks."""
        return self.parallel == FSDP and self.ranks > 1

    @property
    def learning_rank(self) -> int:
        """The rank that knows the loss."""
        return self.ranks - 1 if self.is_pipeline else 0

    def reads(self, rank: int) -> bool:
        """Whether a rank has a loader; of a pipeline only the first stage has."""
        return rank == 0 or not self.is_pipeline

    def loader_options(self, rank: int) -> LoaderOptions:
        """The options of one rank's loader."""
        sizes = (self.batch_size, self.steps, rank, 1 if self.is_pipeline else self.ranks, self.workers)
        shape = self.model_facts.sample_shape
        options = LoaderOptions(
            *sizes, seed=self.seed, lmdb_read=self.lmdb_read, crop=shape[-1], sample_shape=shape, first_batch=self.first_step,
            lmdb_readahead=self.lmdb_readahead, decode=self.decode, on_corrupt=self.on_corrupt,
        )  # fmt: skip
        return options if self.local_copy is None else FillingOptions(**vars(options), local_copy=self.local_copy)

    def evaluation_options(self, rank: int, num_batches: int) -> LoaderOptions:
        """The options of the loader of one evaluation, which makes `num_batches` batches of all samples."""
        options = replace(self, local_copy=None).loader_options(rank)
        return replace(options, num_batches=num_batches, first_batch=0, evaluates=True)

    def open_dataset(self) -> Dataset | None:
        """The dataset's manifest, if the job reads one."""
        return Dataset.load(self.dataset) if self.dataset else None
