"""The options of the built-in job, as `ioprof run` and `ioprof.run` take them, before they are checked."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ioprof.errors import CommandError
from ioprof.train.presets import Preset

DEFAULT_DEVICE: Final = "emulated:a100"
DEFAULT_BATCH_SIZE: Final = 64


@dataclass(frozen=True)
class RunOptions:
    """What the built-in job is to do; `ioprof run --help` explains each. None: not given, so that a preset may say it."""

    dataset: Path | None = None
    loader: str | None = None
    device: str | None = None
    ranks: int | None = None
    batch_size: int | None = None
    workers: int | None = None
    steps: int | None = None
    epochs: int | None = None
    seed: int = 0
    lmdb_read: str | None = None
    dataset_scale: str | None = None
    cache: str | None = None
    memory_limit: str | None = None
    stage_to: str | None = None
    stage_mode: str | None = None
    keep_staged: bool = False
    out: Path | None = None
    force: bool = False
    stacks: bool = True
    preset: str | None = None
    model: str | None = None
    copy: str | None = None
    exchange: str | None = None
    ranks_per_node: int | None = None
    bf16: bool | None = None
    channels_last: bool | None = None
    eval_every: str | None = None
    eval_data: Path | None = None
    checkpoint_every: str | None = None
    checkpoints: Path | None = None
    resume: bool = False
    global_batch_size: int | None = None
    probe_network: bool = False
    predict_epochs: int | None = None
    parallel: str | None = None
    microbatches: int | None = None
    lmdb_readahead: str | None = None
    decode: str | None = None
    on_corrupt: str | None = None
    threads: int | None = None

    def with_preset(self, preset: Preset) -> "RunOptions":
        """These options, and those of the preset that were not given, and that the device and the dataset have a use for."""
        has_length = any(value is not None for value in (self.steps, self.epochs, self.predict_epochs))
        unused = {"steps", "epochs"} if has_length else set()
        device = str(self.device or preset.job.get("device", DEFAULT_DEVICE))
        unused |= {"bf16", "channels_last"} if device.startswith("emulated:") else {"exchange", "ranks_per_node"}
        unused |= {"copy"} if device == "cpu" else set()
        unused |= {"loader"} if self.dataset is not None else set()
        unused |= {"batch_size"} if self.global_batch_size is not None else set()
        added = {key: value for key, value in preset.job.items() if getattr(self, key) is None and key not in unused}
        return replace(self, **added)  # type: ignore[arg-type]  # the preset's types were checked


def with_batch_size(options: RunOptions) -> RunOptions:
    """The options with the samples of a rank, where those of all ranks were given; raises CommandError."""
    total, ranks = options.global_batch_size, options.ranks or 1
    if total is None:
        return options
    if options.batch_size is not None:
        raise CommandError("--batch-size and --global-batch-size: give one of them, not both")
    if total % ranks:
        raise CommandError(f"--global-batch-size {total}: is no multiple of {ranks} ranks")
    return replace(options, batch_size=total // ranks)
