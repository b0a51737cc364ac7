"""The options of the built-in job, as `ioprof run` and `ioprof.run` take them, and as a preset
completes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Final, Self

from ioprof.errors import CommandError
from ioprof.options import Option, check_options
from ioprof.train.options import JobOptions
from ioprof.train.presets import Preset

CACHE_STATES: Final = ("cold", "warm", "as-is")
BEFORE, WHILE_TRAINING = STAGE_MODES = ("before", "while-training")
"""When a dataset is staged: before the job starts, or by the job's own workers in its first
epoch."""
_TRAINING, _STORAGE, _RECORDING = "Training", "Storage", "Recording"


@dataclass(frozen=True, kw_only=True)
class RunOptions(JobOptions):
    """What the built-in job is to do, and what is to be recorded of it; raises `CommandError` for a
    value that cannot be.
    """

    preset: Annotated[
        str | None, Option("A published training: see ioprof presets; or a file NAME.toml.")
    ] = None
    dataset: Annotated[
        Path | str | None,
        Option("Folder made by `ioprof convert`.", unset="a synthetic one is made"),
    ] = field(default=None, kw_only=False)
    global_batch_size: Annotated[
        int | None,
        Option(
            "Samples per step of all ranks together, instead of --batch-size.", _TRAINING, least=1
        ),
    ] = None
    eval_data: Annotated[
        Path | str | None,
        Option(
            "Dataset to evaluate the model on, at the end of each epoch or --eval-every.", _TRAINING
        ),
    ] = None
    checkpoints: Annotated[
        Path | str | None,
        Option(
            "Folder for checkpoints, one at the end of each epoch or --checkpoint-every.", _TRAINING
        ),
    ] = None
    resume: Annotated[bool, Option("Go on from the newest checkpoint.", _TRAINING)] = False
    cache: Annotated[
        str | None,
        Option(
            "Page cache at the start: cold, warm or as-is; proven by residency.",
            _STORAGE,
            choices=CACHE_STATES,
        ),
    ] = None
    memory_limit: Annotated[
        str | None, Option("Memory of the job, its page cache included, such as 2G.", _STORAGE)
    ] = None
    stage_to: Annotated[
        str | Path | None,
        Option("Copy the dataset to this node-local folder first; auto: choose one.", _STORAGE),
    ] = None
    stage_mode: Annotated[
        str,
        Option(
            "before the job, or while-training: in the first epoch.", _STORAGE, choices=STAGE_MODES
        ),
    ] = BEFORE
    keep_staged: Annotated[bool, Option("Leave the copy there for the next run.", _STORAGE)] = False
    stacks: Annotated[
        bool, Option("Sample the Python stacks of ranks and workers.", _RECORDING)
    ] = True
    out: Annotated[
        Path | str | None, Option("Folder for the run.", _RECORDING, unset="ioprof-DATE-TIME here")
    ] = None
    force: Annotated[bool, Option("Replace the folder of an earlier run.", _RECORDING)] = False
    given: frozenset[str] = field(default=frozenset(), metadata={"internal": True})
    """Names of the options that were given, although perhaps with their defaults, and of those that
    have another value: no preset replaces them, and a job that would ignore one is refused."""

    def __post_init__(self) -> None:
        check_options(self)
        changed = {
            each.name
            for each in fields(self)
            if each.name != "given" and getattr(self, each.name) != each.default
        }
        object.__setattr__(self, "given", self.given | changed)

    def changed(self, **values: Any) -> Self:
        """The options with these values, which count as given."""
        return replace(self, **values, given=self.given | values.keys())

    def with_preset(self, preset: Preset) -> "RunOptions":
        """These options, and those of the preset that were not given, and that the device and the
        dataset have a use for.
        """
        unused = set(self.given)
        unused |= (
            {"steps", "epochs"} if self.given & {"steps", "epochs", "predict_epochs"} else set()
        )
        device = str(
            self.device if "device" in self.given else preset.job.get("device", self.device)
        )
        unused |= (
            {"bf16", "channels_last"}
            if device.startswith("emulated:")
            else {"exchange", "ranks_per_node"}
        )
        unused |= {"copy"} if device == "cpu" else set()
        unused |= {"loader"} if self.dataset is not None else set()
        unused |= {"batch_size"} if self.global_batch_size is not None else set()
        return self.changed(
            **{key: value for key, value in preset.job.items() if key not in unused}
        )


@dataclass(frozen=True, kw_only=True)
class StudyOptions(RunOptions):
    """A study made again: the job of its preset, once for each value of what it varies."""

    preset: Annotated[  # type: ignore[misc]  # its place is before the other fields, as that of the field it replaces
        str, Option("A published training with a study: see ioprof presets; or a file NAME.toml.")
    ] = field(kw_only=False)
    values: Annotated[
        str | Sequence[str | int],
        Option(
            "Values of the parameter that the study varies, such as 1,2,4.",
            unset="those of the study",
        ),
    ] = ""
    stacks: Annotated[
        bool, Option("Sample the Python stacks of ranks and workers.", _RECORDING)
    ] = False
    out: Annotated[
        Path | str | None,
        Option("Folder for the runs, the table and the figure.", _RECORDING, unset="study-PRESET"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """What to read of a path, and how much."""

    path: Annotated[
        Path | str, Option("A dataset, a folder with any files, or one large file.")
    ] = field(kw_only=False)
    dataset: Annotated[
        Path | str | None,
        Option(
            "Read ranges as long as this dataset's records; its own files where it lies at PATH."
        ),
    ] = None
    clients: Annotated[
        int, Option("Largest number of concurrent clients: 1, 2, 4, ... up to it.")
    ] = 16
    seconds: Annotated[float, Option("Time that all levels together may take.")] = 30.0
    max_bytes: Annotated[
        str, Option("Bytes that all levels together may read (units are powers of 1024).")
    ] = "2G"
    record_bytes: Annotated[
        str | None, Option("Length of a record where there is no dataset.", unset="112K")
    ] = None
    scratch: Annotated[
        str | None, Option("Write files of this total size in PATH, read them, and remove them.")
    ] = None
    readahead: Annotated[bool, Option("Let the kernel read ahead of random ranges.")] = False


def with_batch_size(options: RunOptions) -> RunOptions:
    """The options with the samples of a rank, where those of all ranks were given; raises
    CommandError.
    """
    total, ranks = options.global_batch_size, options.ranks
    if total is None:
        return options
    if "batch_size" in options.given:
        raise CommandError("--batch-size and --global-batch-size: give one of them, not both")
    if total % ranks:
        raise CommandError(f"--global-batch-size {total}: is no multiple of {ranks} ranks")
    return options.changed(batch_size=total // ranks)
