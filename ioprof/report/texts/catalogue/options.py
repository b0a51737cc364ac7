"""How the options of a recorded job are written, so that an advice names what its reader can
set.
"""

from dataclasses import dataclass, replace
from typing import Final

from ioprof.format.run_record import JobKind


@dataclass(frozen=True)
class JobOptions:
    """Options of one kind of job."""

    workers: str
    """The number of loader workers."""
    batch_size: str
    """Samples per step and rank."""
    prefetch: str
    """Batches that are prepared ahead."""
    with_workers: str
    """A setting of so many workers; `{}` is the number."""
    with_steps: str
    """A job of so many steps or more; `{}` is the number."""
    pinned_copies: str
    """What makes copies to the device start from page-locked memory, and not block."""
    microbatches: str = "n_microbatches="
    """Parts of a batch that go through the stages of a pipeline one after the other."""
    keep_workers: str = "Keep the loader's workers from one epoch to the next"
    """What makes workers live longer than an epoch."""
    local_copy: str = ""
    """How the library itself keeps a local copy of the data; empty: it cannot."""
    fewer_bytes: str = ""
    """How the library reads less for a sample; empty: no general way is known."""

    @property
    def with_prefetch(self) -> str:
        """The setting of so many batches ahead."""
        return self.prefetch + ("{}" if self.prefetch.endswith("=") else " {}")

    @property
    def workers_name(self) -> str:
        """The option of the number of loader workers without the `=` of a parameter:
        `num_workers`.
        """
        return self.workers.rstrip("=")

    @property
    def more_workers(self) -> str:
        """A larger number of loader workers, as the subject of a sentence:
        `a higher num_workers`.
        """
        return (
            "more loader workers"
            if self.workers.startswith("the ")
            else f"a higher {self.workers_name}"
        )


_TORCH: Final = JobOptions(
    workers="num_workers=",
    batch_size="batch_size=",
    prefetch="prefetch_factor=",
    with_workers="num_workers={}",
    with_steps="{} steps or more",
    pinned_copies=(
        "Set pin_memory=True in the DataLoader, and copy with .to(device, non_blocking=True)"
    ),
    keep_workers="Set persistent_workers=True in the DataLoader",
)

_OPTIONS: Final = {
    JobKind.BUILT_IN: JobOptions(
        workers="--workers",
        batch_size="--batch-size",
        prefetch="the prefetch depth",
        with_workers="--workers {}",
        with_steps="--steps {} or more",
        pinned_copies="Copy from page-locked memory on a stream of its own (--copy overlapped)",
        microbatches="--microbatches",
    ),
    JobKind.TORCH: _TORCH,
    JobKind.HF_DATASETS: replace(
        _TORCH,
        fewer_bytes="select_columns() before with_format(), so that only what is needed is read",
    ),
    JobKind.TFRECORD: _TORCH,
    JobKind.TORCHDATA: replace(
        _TORCH,
        with_workers="num_workers={} of the StatefulDataLoader",
        keep_workers="Set persistent_workers=True in the StatefulDataLoader",
    ),
    JobKind.WEBDATASET: replace(
        _TORCH,
        batch_size=".batched()",
        with_workers="num_workers={} of the WebLoader",
        keep_workers="Set persistent_workers=True in the WebLoader",
        local_copy="Keep a local copy of the shards (cache_dir= of wds.WebDataset)",
    ),
    JobKind.LITDATA: replace(
        _TORCH,
        with_workers="num_workers={} of the StreamingDataLoader",
        keep_workers="Set persistent_workers=True in the StreamingDataLoader",
        local_copy=(
            "Let LitData keep its chunks on a local disk (cache_dir= and max_cache_size= of"
            " StreamingDataset)"
        ),
    ),
    JobKind.STREAMING: replace(
        _TORCH,
        prefetch="predownload=",
        local_copy=(
            "Let MosaicML streaming keep its shards on a local disk (local= and cache_limit= of"
            " StreamingDataset)"
        ),
    ),
    JobKind.SPDL: JobOptions(
        workers="concurrency=",
        batch_size=".aggregate()",
        prefetch="the buffer of add_sink()",
        with_workers="concurrency={0} and num_threads={0}",
        with_steps="{} steps or more",
        pinned_copies=(
            "Copy from page-locked memory in a stage of the pipeline (spdl.io.transfer_tensor)"
        ),
    ),
    JobKind.POOL: JobOptions(
        workers="number of processes",
        batch_size="the batch size",
        prefetch="the number of tasks ahead",
        with_workers="processes={} of the Pool",
        with_steps="{} steps or more",
        pinned_copies=(
            "Copy from page-locked memory, without blocking (pin_memory() and non_blocking=True)"
        ),
        keep_workers="Make the Pool once, not for each epoch",
    ),
    JobKind.PROCESS_POOL: JobOptions(
        workers="max_workers=",
        batch_size="the batch size",
        prefetch="the number of tasks ahead",
        with_workers="max_workers={} of the ProcessPoolExecutor",
        with_steps="{} steps or more",
        pinned_copies=(
            "Copy from page-locked memory, without blocking (pin_memory() and non_blocking=True)"
        ),
        keep_workers="Make the ProcessPoolExecutor once, not for each epoch",
    ),
    JobKind.RAY: JobOptions(
        workers="concurrency=",
        batch_size="batch_size=",
        prefetch="prefetch_batches=",
        with_workers="concurrency={} of map_batches()",
        with_steps="{} steps or more",
        pinned_copies="Use iter_torch_batches(device=..., pin_memory=True)",
    ),
    JobKind.DALI: JobOptions(
        workers="num_threads=",
        batch_size="batch_size=",
        prefetch="prefetch_queue_depth=",
        with_workers="num_threads={}",
        with_steps="{} steps or more",
        pinned_copies="Let the pipeline copy the batches itself (device='mixed' or .gpu())",
    ),
    JobKind.OTHER: JobOptions(
        workers="the number of loader workers",
        batch_size="the batch size",
        prefetch="the prefetch depth",
        with_workers="{} threads or processes that make batches",
        with_steps="{} steps or more",
        pinned_copies=(
            "Copy from page-locked memory, without blocking (torch: pin_memory=True and"
            " non_blocking=True)"
        ),
        keep_workers="Start the workers once, not for each epoch",
    ),
}


def options_of(job: JobKind) -> JobOptions:
    """The options of a recorded job of that kind."""
    return _OPTIONS[job]
