"""What run.json says of a job: its settings, device and dataset, and what was done to storage and
memory for it.
"""

from typing import Annotated

from msgspec import field

from ioprof.format.run_record.record import ESSENTIAL, Count, Number, Record, SmallCount


class ConfigRecord(Record, frozen=True, omit_defaults=True):
    """Settings of the job: all of the built-in job, and of any other what hooks saw of it."""

    ranks: Annotated[SmallCount | None, ESSENTIAL] = None
    """Data-parallel processes."""
    workers: Annotated[SmallCount | None, ESSENTIAL] = None
    """Loader processes per rank; 0: the rank loads its own batches."""
    batch_size: Annotated[SmallCount | None, ESSENTIAL] = None
    """Samples per step and rank."""
    loader: Annotated[str | None, ESSENTIAL] = None
    device: Annotated[str | None, ESSENTIAL] = None
    """`cpu`, `cuda`, or `emulated:NAME`."""
    steps: Count | None = None
    """Of the built-in job: steps that were asked for."""
    seed: Count | None = None
    """Of the built-in job: seed of the order and the crops."""
    dataset: str | None = None
    """Path of the dataset, or the class of the script's Dataset."""
    lmdb_read: str | None = None
    lmdb_readahead: str | None = None
    """Of the built-in job: `auto`, `on` or `off`, as it was asked for; see `loading` for what it
    was."""
    decode: str | None = None
    """Of the built-in job: what of a JPEG was to be decoded: `roi`, `full` or `pillow`."""
    on_corrupt: str | None = None
    """Of the built-in job, for an image that cannot be decoded, or of which libjpeg warns: `fail`,
    `quarantine` or `accept`."""
    prefetch: Count | None = None
    """Of a torch DataLoader: batches per worker that are prepared ahead (`prefetch_factor`)."""
    persistent_workers: bool | None = None
    shards: Count | None = None
    """Of webdataset: shards that a rank's workers divide among themselves; with more workers some
    have nothing to read. Of several lists, the longest. Null: not known, or all workers read all
    shards."""
    trained_samples: Count | None = None
    """Samples of the largest batch that a model was called with to train, of the first eight: the
    first dimension of its first argument."""
    optimizer: str | None = None
    backend: str | None = None
    """Of `torch.distributed`."""
    libraries: tuple[str, ...] = ()
    """Data and training libraries that the job used and that hooks observe, with their versions:
    `webdataset 1.0.2`."""
    model: str | None = None
    """Of the built-in job: the network that is trained, and the fields below."""
    copy: str | None = None
    """How batches get to the device: `overlapped`, `pinned` or `pageable`."""
    exchange: str | None = None
    """Of an emulated device: how gradients are exchanged."""
    ranks_per_node: Count | None = None
    """Of an emulated device: ranks on its faster link."""
    first_step: Count | None = None
    """More than 0: the job went on from the checkpoint of that step."""
    steps_per_epoch: Count | None = None
    evaluate_every: Count | None = None
    """Steps between evaluations; 0: none."""
    checkpoint_every: Count | None = None
    predict_epochs: Count | None = None
    """Of how many epochs the time is to be predicted."""
    as_of: Count | None = None
    """Samples of the dataset of which that time is to be predicted; null: of the run's own."""
    gradient_bytes: Count | None = None
    """Of the parameters that DistributedDataParallel exchanges, on each rank."""
    loading_rank: Count | None = None
    """The rank that loads the batches of all ranks and sends them (accelerate's
    DataLoaderDispatcher). Null: each loads its own."""
    detects_anomalies: bool = False
    """Whether torch.autograd.set_detect_anomaly was on at an optimizer's first step."""
    parallel: str | None = None
    """`data`; `pipeline`: the ranks are stages of the model; `fsdp`: the parameters are divided
    among them. Null: not known."""
    microbatches: Count | None = None
    """Of a pipeline: parts of a batch that go through the stages one after the other."""
    stages: Count | None = None
    """Of a pipeline."""

    @property
    def replicas(self) -> int | None:
        """How many ranks, or groups of ranks that are the stages of one pipeline, train on samples
        of their own.
        """
        return None if self.ranks is None else max(1, self.ranks // (self.stages or 1))


class LoadingRecord(Record, frozen=True):
    """How the loader of the built-in job turned out to work."""

    decoder: str | None = None
    """Library that decoded JPEGs; null: Pillow, or none of ioprof's loaders decoded."""
    lmdb_readahead: bool | None = None
    """Whether the kernel read ahead in the memory map of an LMDB; null: there was none."""
    lmdb_readahead_reason: str | None = None
    """`asked`, `shared`, `small window`, `fits in memory` or `larger than memory`."""
    num_left_out: Count | None = None
    """Images that were left out as corrupt, each counted once."""
    left_out: tuple[str, ...] = ()
    """The first of them: name, and why."""


class Transfer(Record, frozen=True):
    """A message, or an all-reduce, of so many bytes."""

    bytes: Count | None = None
    seconds: float | None = None
    """Median, each as long as the slowest rank took."""
    bytes_per_s: float | None = None
    """Of an all-reduce 2L(p-1)/p / t."""


class NetworkRecord(Record, frozen=True):
    """What the network between the ranks delivered, over the process group of the job."""

    ranks: SmallCount | None = None
    backend: str | None = None
    latency_s: float | None = None
    """Of a message of 4 bytes, one way."""
    messages: tuple[Transfer, ...] = ()
    """Between rank 0 and the last one."""
    all_reduces: tuple[Transfer, ...] = ()


class ExchangeRate(Record, frozen=True):
    """How fast a job exchanged its gradients, in a median step."""

    gradient_bytes: Count | None = None
    """L: of one rank."""
    ranks: SmallCount | None = None
    """p."""
    seconds: float | None = None
    """t: from the arrival of the last rank to the end, summed over buckets."""
    bytes_per_s: float | None = None
    """2L(p-1)/p / t. Low beside an all-reduce of as many bytes on the same network: buckets waited
    for their gradients."""
    alone_s: float | None = None
    """Part of t after the last rank had computed all gradients. Less than t where the buckets are
    one span, in which some are still computed: then the transfer took a time between the two. Null:
    all of t is transfer."""


class DeviceRecord(Record, frozen=True):
    """The accelerator."""

    name: Annotated[str | None, ESSENTIAL] = None
    basis: Annotated[str | None, ESSENTIAL] = None
    """`measured` or `emulated`."""
    model: str | None = None
    """The network that was trained."""
    samples_per_s: Annotated[float | None, ESSENTIAL] = None
    """Rate of one emulated device."""
    rate_basis: str | None = None
    """`published` or `derived`."""
    rate_source: str | None = None
    """Where the rate was published, or how it was derived."""
    gradient_bytes: Count | None = None
    """What data-parallel ranks exchange in each step."""
    h2d_bytes_per_s: Number | None = None
    exchange_bytes_per_s: Number | None = None
    """Of the link between the devices of a node, one direction."""
    network_bytes_per_s: Number | None = None
    """Of the link of a whole node, one direction."""


class EvaluationRecord(Record, frozen=True):
    """One evaluation of the model, over all ranks."""

    step: Count | None = None
    """Steps done before it."""
    epoch: Number | None = None
    seconds: Number | None = None
    """From the start of the job's first step to the end of the evaluation."""
    samples: Count | None = None
    loss: Number | None = None
    """Mean over predictions. Null: an emulated device learns nothing."""
    accuracy: Number | None = None
    """Share of right predictions, 0 to 1. Null: the same."""


class LearningRecord(Record, frozen=True):
    """What the built-in job learned."""

    first_step: Count | None = None
    """The step of the first loss."""
    steps_per_loss: Count | None = None
    """Each loss is the mean of so many steps."""
    losses: tuple[float, ...] = ()
    """Of the batches of rank 0."""
    evaluations: tuple[EvaluationRecord, ...] = ()
    checkpoints: tuple[Count, ...] = ()
    """Steps after which a checkpoint was written."""


class ImageRecord(Record, frozen=True, omit_defaults=True):
    """How a dataset stores its images."""

    transform: str | None = None
    """`original` or `rgb256`."""
    encoding: str | None = None
    size: Count | None = None
    """Edge length in pixels."""
    quality: Count | None = None
    resize: str | None = None


class DatasetRecord(Record, frozen=True, omit_defaults=True):
    """The dataset that the built-in job reads, from its manifest."""

    path: str | None = None
    name: Annotated[str | None, ESSENTIAL] = None
    split: str | None = None
    layout: Annotated[str | None, ESSENTIAL] = None
    records: Count | None = None
    bytes: Annotated[int | None, ESSENTIAL] = None
    digest: str | None = None
    scale: Number | None = None
    """Multiple of the dataset that it was made from."""
    source: str | None = None
    image: ImageRecord | None = None
    classes: Count | None = None


class DistinctBytes(Record, frozen=True):
    """Whether the copies in a multiple of a dataset have disk blocks of their own, by a sample of
    its files.
    """

    files: Count | None = None
    """Files in the sample."""
    bytes: Count | None = None
    shared_bytes: Count | None = None
    """Of these, bytes in blocks that other files use too. Null: see `reason`."""
    reason: str | None = None


class MemoryLimitRecord(Record, frozen=True):
    """The memory limit of the job, and what the kernel counted under it."""

    asked_bytes: Count | None = None
    by: str | None = None
    """What limits: `cgroup v1`, `cgroup v2` or `systemd`."""
    name: str | None = None
    peak_bytes: Count | None = None
    page_cache_bytes: Count | None = None
    """Page cache charged to the job at its end."""
    times_at_limit: Count | None = None
    killed_for_memory: Count | None = None
    """Processes that the kernel killed because of the limit."""


class ResidencyRecord(Record, frozen=True):
    """How much of some files is in the page cache."""

    files: Count | None = None
    bytes: Count | None = None
    resident_bytes: Count | None = None
    ratio: Number | None = None
    """`resident_bytes` / `bytes`. Null: see `reason`."""
    methods: dict[str, Count] = field(default_factory=dict)
    """Method (`cachestat`, `mincore`) to the number of files."""
    unknown_files: Count | None = None
    reason: str | None = None


class PageCacheRecord(Record, frozen=True):
    """State of the page cache that was asked for, and what was found."""

    asked: str | None = None
    """`cold`, `warm` or `as-is`."""
    kind: str | None = None
    """Of the dataset's storage: `local`, `shared`, `memory` or `unknown`."""
    before: ResidencyRecord | None = None
    """Before anything was done."""
    start: ResidencyRecord | None = None
    """When the job started."""
    end: ResidencyRecord | None = None
    """When the job had ended."""
    held_by: tuple[str, ...] = ()
    """Programs that map files which should be cold."""
    lower: ResidencyRecord | None = None
    """When the job started: of the files that the dataset's file system lies on, such as the
    backing file of a loop device; null: there are none. What is cached of them, reads of the
    dataset do not fetch from a disk."""
    hidden_lower: tuple[str, ...] = ()
    """Such files that cannot be looked at here, and why."""
    reclaim: str | None = None
    """What on this host reclaims pages in use."""


class SharedRead(Record, frozen=True):
    """Reads of the shared path that were timed before staging."""

    records: Count | None = None
    readers: Count | None = None
    mean_s: Number | None = None
    """Mean time to read a record that is not in the page cache."""


class StageRecord(Record, frozen=True, omit_defaults=True):
    """How the dataset was staged to a folder of the node."""

    found_by: str | None = None
    steps_per_epoch: Count | None = None
    records: Count | None = None
    shared_read: SharedRead | None = None
    mode: str | None = None
    """`before` the job, or `while-training`."""
    source: str | None = field(default=None, name="from")
    to: str | None = None
    files: Count | None = None
    bytes: Count | None = None
    threads: Count | None = None
    verified: str | None = None
    """`digest` or `size`."""
    is_kept: bool | None = field(default=None, name="kept")
    """Whether the copy was to stay after the job."""
    reused: bool | None = None
    """Whether the copy was there already."""
    copied_bytes: Count | None = None
    read_s: Number | None = None
    """Summed over threads."""
    write_s: Number | None = None
    """Summed over threads."""
    check_s: Number | None = None
    seconds: Number | None = None
    """Wall time of all that staging did."""
    source_cache: ResidencyRecord | None = None
    filled_ratio: Number | None = None
    """While training: share of the copy that the job's own reads had written."""
    finish_s: Number | None = None
    """While training: time to copy the rest and compare it."""
    removed: bool | None = None
