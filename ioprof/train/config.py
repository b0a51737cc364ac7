"""What a training job is to do: read once at the edge, handed to every rank as JSON."""

import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ioprof.format.dataset import Dataset
from ioprof.loaders.base import LoaderOptions, LoadingOptions
from ioprof.loaders.filling import FillingOptions
from ioprof.options import values_of
from ioprof.train.models import ModelFacts, default_model, model_facts
from ioprof.train.options import JobOptions
from ioprof.train.parallelism import FSDP, PIPELINE
from ioprof.train.recipe import Recipe


def loading_path(spool: Path, rank: int) -> Path:
    """Where a rank leaves how its loader worked, and which images it left out."""
    return spool / f"loading-{rank}.json"


def network_path(spool: Path) -> Path:
    """Where a rank leaves what it found of the network."""
    return spool / "network.json"


@dataclass(frozen=True, kw_only=True)
class JobConfig(JobOptions):
    """The built-in training job: its options, each as it is for this job, and what was found out
    for it.
    """

    spool: Path = Path()
    """Node-local folder that takes the capture files while the job runs."""
    dataset: Path | None = None
    local_copy: Path | None = None
    """Of the dataset, on this node: what loaders fill while they read (see
    `ioprof.loaders.filling`)."""
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
    job: str | None = None
    """What distinguishes this job of a launcher from others."""

    def save(self, path: Path) -> None:
        """Write the config for the ranks to read."""
        keys = asdict(self)
        path.write_text(
            json.dumps(
                {
                    key: str(value) if isinstance(value, Path) else value
                    for key, value in keys.items()
                }
            )
        )

    @classmethod
    def load(cls, path: Path) -> "JobConfig":
        """The config that `save` wrote."""
        keys: dict[str, Any] = json.loads(path.read_text())
        paths = {
            each.name: Path(keys[each.name])
            for each in fields(cls)
            if keys[each.name] and each.type in (Path, Path | None)
        }
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
        shape = self.model_facts.sample_shape
        options = LoaderOptions(
            self.batch_size,
            self.steps,
            rank,
            1 if self.is_pipeline else self.ranks,
            crop=shape[-1],
            sample_shape=shape,
            first_batch=self.first_step,
            **values_of(LoadingOptions, self),
        )
        return (
            options
            if self.local_copy is None
            else FillingOptions(**vars(options), local_copy=self.local_copy)
        )

    def evaluation_options(self, rank: int, num_batches: int) -> LoaderOptions:
        """The options of the loader of one evaluation, which makes `num_batches` batches of all
        samples.
        """
        options = replace(self, local_copy=None).loader_options(rank)
        return replace(options, num_batches=num_batches, first_batch=0, evaluates=True)

    def open_dataset(self) -> Dataset | None:
        """The dataset's manifest, if the job reads one."""
        return Dataset.load(self.dataset) if self.dataset else None
