"""The answer: what the job waited for most, in a word and a sentence, and what to change, each with the number it is based on."""

from collections.abc import Callable, Collection, Iterator
from pathlib import PurePosixPath
from typing import Final

from ioprof.analysis.details import EPOCH_END, SAMPLER, WORKER_GC, WORKER_START
from ioprof.analysis.doubts import with_doubts
from ioprof.analysis.evidence import LEAST_NAMED_RATIO, MOSTLY_ONE, Evidence, line_text, shortened
from ioprof.analysis.job_verdict import with_loading_rank
from ioprof.analysis.lineage import LEAVES
from ioprof.analysis.queue_advice import deeper_queue, more_workers, waiting_workers
from ioprof.run_record import Advice, JobChange, JobKind, NoGain, Reason, RunRecord, Verdict

IDLE_RATIO: Final = 0.10
"""Share of the steps' time from which on an idle accelerator makes something else the bound."""
_LEAST_OF_LOADER: Final = 0.6
"""Part of the waiting for batches from which on one of several loaders is named for it."""
_MOSTLY_UNNAMED: Final = 0.5
"""Part of the workers' time without a named stage from which on the longest of the named ones is not what makes batches late."""
_LEAST_OF_WORK: Final = 0.1
"""Part of the workers' time below which a stage is not named for waits, if most of their time has no name."""


def verdict(evidence: Evidence) -> Verdict:
    """`bound_by`, and why. Numbers that depend on an emulated device are called emulated in the text."""
    shares = evidence.shares
    if not sum(shares.values()):
        return Verdict(None, f"No step was completed, so it is not known what the job waited for{_unobserved(evidence.run)}.")
    bound, is_own = _bound_by(shares, evidence)
    text = _text_of_own(evidence, bound, shares) if is_own else _text(evidence, bound, shares)
    advice = list(_own_advice(evidence, bound) if is_own else _ADVICE[bound](evidence))
    if bound in LEAVES and not is_own:
        advice = [*deeper_queue(evidence), *advice]
    stages = evidence.own if is_own else {cause: float(took_ns) for cause, took_ns in evidence.making.items()}
    found = Verdict(bound, text, tuple(_with_cause(entry, bound) for entry in advice))
    found = with_doubts(found, evidence, _rivals(shares, evidence), stages if bound in stages else {})
    return with_loading_rank(found, evidence)


def _groups(shares: dict[str, float], evidence: Evidence) -> tuple[dict[str, float], dict[str, float]]:
    """The shares of waiting for batches by cause, and of all other causes than compute."""
    waits = {cause: max(share - evidence.own.get(cause, 0.0), 0.0) for cause, share in shares.items() if cause in LEAVES}
    return waits, {cause: share for cause, share in shares.items() if cause != "compute" and cause not in waits}


def _rivals(shares: dict[str, float], evidence: Evidence) -> dict[str, float]:
    """What `_bound_by` chooses from, where it is not compute: shares by what it is in words."""
    waits, others = _groups(shares, evidence)
    return {"waiting for batches": sum(waits.values()), "the training process's own reads and decoding": sum(evidence.own.values()),
            **{cause.replace("_", " "): share for cause, share in others.items()}}  # fmt: skip


def _unobserved(run: RunRecord) -> str:
    """Why perhaps no step was recorded, as the end of a sentence."""
    if run.capture.unobserved:
        hook = run.capture.unobserved[0]
        return f": {hook.unobserved} was not observed" + (f" ({hook.why})" if hook.why else "")
    noted = (process.reads.noted for process in run.processes if process.reads)
    return ": Python ran without the hooks of ioprof" if any("python program" in words for words in noted) else ""


def _bound_by(shares: dict[str, float], evidence: Evidence) -> tuple[str, bool]:
    """The greatest cause after compute, where all causes of waiting for a batch count as one, and whether the training process
    itself spent that time on reading and decoding, of which all causes count as one too.

    The wait for a batch is named for the stage that takes most of all the workers' time, not of the part of it that lies in a wait:
    where workers are always busy a wait begins late in their work, and so overlaps with the last stages only. If most of
    the workers' time is in no stage, that is `loader`, unless the workers are often idle, so that a wait sees all of the work.
    """
    if shares.get("compute", 0.0) > 1 - IDLE_RATIO:
        return "compute", False
    own, making = evidence.own, evidence.making
    waits, others = _groups(shares, evidence)
    if sum(own.values()) > max(sum(waits.values()), *others.values(), 0.0):
        return max(own, key=lambda cause: own[cause]), True
    if max(others.values(), default=0.0) > sum(waits.values()):
        return max(others, key=lambda cause: others[cause]), False
    made = sum(waits.get(cause, 0.0) for cause in making)
    if making and (made >= 0.5 * sum(waits.values()) or (evidence.workers_are_busy and made > waits.get("loader", 0.0))):
        if evidence.unnamed_ratio <= _MOSTLY_UNNAMED:
            return max(making, key=lambda cause: making[cause]), False
        seen = max(making, key=lambda cause: waits.get(cause, 0.0))
        of_work = making[seen] / (evidence.unnamed_ns + sum(making.values()))
        return "loader" if evidence.workers_are_busy or of_work < _LEAST_OF_WORK else seen, False
    if evidence.workers_are_busy:  # a batch that arrives late was made late
        waits = {cause: share for cause, share in waits.items() if cause != "delivery"}
    return max(waits, key=lambda cause: waits[cause]), False


def _text_of_own(evidence: Evidence, bound: str, shares: dict[str, float]) -> str:
    """What is said where the training process itself reads and decodes."""
    share, emulated = evidence.own[bound], "emulated " if evidence.run.is_emulated else ""
    derived = " (derived from the times of its threads)" if evidence.charged[bound].basis == "derived" else ""
    return (
        f"{BOUND_NAMES[bound]}-bound: the training process itself spent {share:.1%} of the {emulated}steps' time on "
        f"{_OWN_MEANING[bound]}{evidence.most(bound)}{derived}{_next(shares, bound)}.{_startup(evidence, bound)}"
    )


def _text(evidence: Evidence, bound: str, shares: dict[str, float]) -> str:
    devices = f"{'emulated ' if evidence.run.is_emulated else ''}accelerators"
    idle = f"the {devices} were idle for {1 - shares.get('compute', 0.0):.1%} of the steps' time"
    if is_on_cpu := evidence.run.config.device == "cpu" and not evidence.run.is_emulated:
        devices, idle = "CPU", f"the model computed (on the CPU) for {shares.get('compute', 0.0):.1%} of the steps' time"
    if "compute" not in shares:
        return (
            f"Of the steps' time {shares[bound]:.1%} went to {_MEANING[bound]}{evidence.most(bound)}; "
            f"what the {devices} computed was not recorded, so how much of it was hidden is not known."
        )
    if bound == "compute":
        keep = " Leave the input pipeline as it is: only a faster model or device makes this job faster."
        computed = "the model computed (on the CPU)" if is_on_cpu else f"the {devices} computed"
        text = f"Compute-bound: {computed} for {shares['compute']:.1%} of the steps' time{_next(shares)}."
        return text + keep if evidence.has_loader else text
    if bound in evidence.making or (bound == "loader" and _is_hidden(evidence, shares)):
        waited = sum(share for cause, share in shares.items() if cause in LEAVES)
        return (
            f"{BOUND_NAMES[bound]}-bound: {idle}, and {waited:.1%} went to waiting for batches{evidence.most(bound)}"
            f"{_of_loader(evidence)}{_of_stragglers(evidence, LEAVES)}; the workers spent {_stages(evidence)}."
            f"{_startup(evidence, bound)}"
        )
    where = evidence.place_of_host if bound == "host" else _of_loader(evidence) if bound in LEAVES else ""
    return (
        f"{BOUND_NAMES[bound]}-bound: {idle}, and {shares[bound]:.1%} went to {_MEANING[bound]}{evidence.most(bound)}{where}"
        f"{_of_stragglers(evidence, (bound,))}{_next(shares, bound)}.{_startup(evidence, bound)}"
    )


def _next(shares: dict[str, float], bound: str = "compute") -> str:
    rest = {cause: share for cause, share in shares.items() if cause not in ("compute", bound)}
    after = max(rest, key=lambda cause: rest[cause], default=None)
    return f"; next comes {after.replace('_', ' ')} with {rest[after]:.1%}" if after and rest[after] >= 0.001 else ""


def _stages(evidence: Evidence) -> str:
    """The stages of making a batch, the longest first, as shares of the workers' time, as in the table of causes."""
    work = {**evidence.making, **({"loader": evidence.unnamed_ns} if evidence.unnamed_ratio > _MOSTLY_UNNAMED else {})}
    total_ns = sum(work.values())
    told = {cause: entry.workers_share for cause, entry in evidence.charged.items() if entry.workers_share is not None}
    found = {cause: told.get(cause, took_ns / total_ns) for cause, took_ns in work.items()}
    stages = sorted((cause for cause in found if found[cause] >= 0.01), key=lambda cause: -found[cause])
    return ", ".join(
        f"{found[cause]:.1%} {'of their work on' if place == 0 else 'on'} {_STAGE_NAMES.get(cause, cause)}"
        for place, cause in enumerate(stages)
    )


def _is_hidden(evidence: Evidence, shares: dict[str, float]) -> bool:
    """Whether most of the workers' time has no name, and most of the waiting for batches overlaps with named stages."""
    waits, _ = _groups(shares, evidence)
    return evidence.unnamed_ratio > _MOSTLY_UNNAMED and waits.get("loader", 0.0) < 0.5 * sum(waits.values())


def _of_stragglers(evidence: Evidence, causes: Collection[str]) -> str:
    share = sum(evidence.straggler_wait.get(cause, 0.0) for cause in causes)
    waited = {rank: sum(found.values()) for rank, found in evidence.steps.straggler_wait_s.items()}
    slow = max(waited, key=lambda rank: waited[rank], default=None)
    is_one = slow is not None and waited[slow] >= MOSTLY_ONE * sum(waited.values())
    who = f"rank {slow}, which the others waited for" if is_one else "a slower rank that the others waited for"
    return f" ({share:.1%} of the time on {who})" if share >= 0.01 else ""


def _of_loader(evidence: Evidence) -> str:
    """Of several loaders that the loop takes batches from, the one that most of the waiting was for."""
    training = [loader for loader in evidence.loaders if loader.purpose == "train"]
    waited_s = sum(loader.waited_s for loader in training)
    if len(training) < 2 or training[0].waited_s < _LEAST_OF_LOADER * waited_s:
        return ""
    ratio = training[0].waited_s / waited_s if waited_s else 0.0
    return f", {ratio:.0%} of the waiting for the loader of {training[0].name}"


def _startup(evidence: Evidence, bound: str) -> str:
    ratio = evidence.warmup_ratio.get(bound, 0.0)
    if ratio < 0.5 or not evidence.steps.warmup:
        return ""
    return f" Of that, {ratio:.0%} was in the first {evidence.steps.warmup} steps (start-up): a longer run has a smaller share."


BOUND_NAMES: Final = {
    "compute": "Compute", "exchange": "Exchange", "straggler": "Straggler", "h2d": "Copy", "storage": "Storage",
    "page_cache": "Page-cache", "decode": "Decode", "transform": "Transform", "collate": "Collate", "delivery": "Delivery",
    "loader": "Loader", "validation": "Validation", "checkpoint": "Checkpoint", "gc": "Garbage-collection", "host": "Host",
}  # fmt: skip
_MEANING: Final = {
    "exchange": "exchanging gradients",
    "straggler": "waiting for ranks that had more to compute",
    "h2d": "copies between host and device",
    "storage": "waiting for reads from storage",
    "page_cache": "reads served from memory",
    "decode": "waiting for images to be decoded",
    "transform": "waiting for samples to be transformed",
    "collate": "waiting for samples to be collated into batches",
    "delivery": "transferring finished batches from workers to ranks",
    "loader": "the loader's own work besides reading and decoding",
    "validation": "evaluating the model",
    "checkpoint": "writing checkpoints",
    "gc": "Python's garbage collector",
    "host": "the ranks' own Python, which no span covers",
}
_STAGE_NAMES: Final = {"page_cache": "page cache", "loader": "the dataset's own code and the loader's"}
_OWN_MEANING: Final = {
    "storage": "reads from storage",
    "page_cache": "reads served from memory",
    "decode": "decoding",
    "transform": "transforming samples",
    "collate": "collating samples",
    "loader": "its sampler",
}


# ------------------------------------------------------------------------------------------------ advice


_Lines = Iterator[str | Advice]
"""What to change; a line alone is about the cause that it was asked for, and makes it cost less, nobody knows by how much."""


def _with_cause(entry: str | Advice, bound: str) -> Advice:
    return Advice(entry, cause=bound) if isinstance(entry, str) else entry


def _own_advice(evidence: Evidence, bound: str) -> _Lines:
    """What to change where the training process itself reads and decodes."""
    spent = f"a step spends {_ms(evidence.seconds_per_step(bound))} on {_OWN_MEANING[bound]} in the training process itself"
    detail = evidence.largest_detail(bound) if bound in ("storage", "page_cache") else None
    name = shortened(detail.name) if detail else "the data"
    if ".so" in PurePosixPath(name).name:
        yield f"Copy the environment of {name} to node-local storage before the job starts: {spent}, where its pages are first used"
        return
    if bound == "storage":
        yield f"Copy {name} to node-local storage, or read it once before the job starts if memory can hold it: {spent}"
    where = "in the loader's workers" if evidence.has_loader else "in other processes or threads"
    work = f"Read {name}" if bound in ("storage", "page_cache") else "Do this work"
    yield f"{work} {where}, ahead of the step that uses it: {spent}"


def _compute(evidence: Evidence) -> _Lines:
    rest = f"everything but compute took {1 - (evidence.charged['compute'].share or 0.0):.1%} of the steps' time"
    change = JobChange(speeds={"compute": 2.0})
    yield Advice(f"Use a faster model or device, here one that is twice as fast: {rest}", cause="compute", change=change)


def _storage(evidence: Evidence) -> _Lines:
    seen, need, dataset = evidence.storage, evidence.demand, evidence.dataset
    detail, is_foreign = evidence.largest_detail("storage", LEAST_NAMED_RATIO), evidence.run.job_kind is not JobKind.BUILT_IN
    name = shortened(detail.name) if detail else "the data"
    if seen.bytes_socket + seen.bytes_pipe > seen.bytes_from_storage + seen.bytes_unknown:
        yield f"Receive {name} in several streams at once, or copy it to local storage first: {_waits(evidence)} that others send"
        return
    for pattern in evidence.patterns:
        if pattern.code == "small reads" and 2e9 * (pattern.seconds or 0.0) >= evidence.making.get("storage", 0):
            yield f"Read in larger pieces ({pattern.remedy}): {pattern.seen}; {_waits(evidence)}"
    if file := evidence.slow_file:
        rest_s = sum(other.seconds for other in evidence.files) - file.seconds
        yield Advice(
            f"Copy {shortened(file.path)} to faster storage, or keep it in memory: {file.accesses:,} reads of this one file took "
            f"{file.seconds:,.2f} s, the slowest {_ms(file.max_s)}; {_waits(evidence)}",
            cause="storage",
            change=JobChange(speeds={"storage": 1 + file.seconds / rest_s if rest_s else None}),
        )
    depth = evidence.depth
    if depth is not None and depth.bound == "throughput":
        yield (
            f"Keep {evidence.options.workers.rstrip('=')}, and read fewer bytes per sample: storage delivered "
            f"{_rate(depth.bytes_per_s)} with {depth.mean:.1f} reads at a time, and is bound by throughput, which workers share"
        )
    if depth is not None and depth.bound == "latency" and evidence.has_loader:
        yield (
            f"Read more at a time ({evidence.options.workers.rstrip('=')}, or threads that read ahead): {depth.mean:.1f} reads "
            f"from storage were in progress at a time, {_ms(depth.latency_s)} each; storage is bound by latency, so more reads "
            "at a time get more, also where all cores are in use"
        )
    if need.bytes_per_s and need.reads_per_s and seen.accesses and evidence.wall_s:
        yield (
            f"Use storage that delivers {_rate(need.bytes_per_s)} in {need.reads_per_s:,.0f} reads/s "
            f"({seen.bytes / seen.accesses / 1e3:,.0f} kB each): the devices need that, and this run got "
            f"{_rate(seen.bytes / evidence.wall_s)} in {seen.accesses / evidence.wall_s:,.0f} reads/s"
        )
    if is_foreign:
        copy = evidence.options.local_copy or f"Copy {name} to faster, node-local storage before the job starts"
        yield f"{copy}: {_waits(evidence)}"
        if evidence.options.fewer_bytes:
            yield f"Read fewer bytes per sample from storage: {evidence.options.fewer_bytes}"
    if dataset.layout == "files" and seen.accesses:
        yield (
            f"Convert to LMDB (ioprof convert imagenet SRC DST --layout lmdb): now each of the {seen.accesses:,} reads, "
            f"{seen.bytes / seen.accesses / 1e3:,.0f} kB on average, opens a file of its own"
        )
    size, memory = dataset.bytes, evidence.run.memory_bytes
    if size and size > 0:
        fits = f", and memory ({memory / 1e9:,.1f} GB) holds it after the first epoch" if memory and size < 0.8 * memory else ""
        yield f"Copy the dataset ({size / 1e9:,.2f} GB) to node-local storage before the job starts{fits}"
    if depth is None or depth.bound is None:
        yield from more_workers(evidence, f"each waits for one read at a time, which takes {_ms(seen.read_p50_s)} (p50)")


def _waits(evidence: Evidence) -> str:
    return f"a step waits {_ms(evidence.seconds_per_step('storage'))} for data"


def _page_cache(evidence: Evidence) -> _Lines:
    seen = evidence.storage
    if seen.accesses:
        smaller = "; images stored smaller (ioprof convert ... --image rgb256) are read faster" if evidence.stores_originals else ""
        yield (
            f"Read fewer bytes per sample: {seen.accesses:,} reads were served from memory, "
            f"{seen.bytes / seen.accesses / 1e3:,.0f} kB on average, {_ms(seen.read_p50_s)} each (p50){smaller}"
        )
    yield from more_workers(evidence, f"a step waits {_ms(evidence.seconds_per_step('page_cache'))} for reads from memory")


def _decode(evidence: Evidence) -> _Lines:
    run, samples = evidence.run, evidence.fetched.samples
    sample_s = evidence.fetched.decode_ns / 1e9 / samples if samples and evidence.fetched.decode_ns else None
    step_s = evidence.seconds_per_step("decode")
    cost = f"decoding one image takes {_ms(sample_s)} of a worker" if sample_s else f"a step waits {_ms(step_s)} for decoding"
    if run.config.decode in ("full", "pillow") and evidence.stores_originals:
        yield f"Decode only the crop of each image (--decode roi instead of {run.config.decode}): {cost}"
    yield from more_workers(evidence, cost)
    if evidence.stores_originals:
        yield f"Convert to 256-pixel images (ioprof convert imagenet SRC DST --image rgb256): {cost} at the original size"
    else:
        yield f"Decode less for each sample (images stored smaller), or use a faster decoder: {cost}"
    need = evidence.demand.at_samples_per_s
    if sample_s and need and need * sample_s > (run.config.ranks or 1) * (run.config.workers or 1):
        cores = f", and the job has {run.cpus} cores" if run.cpus else ""
        more = f"Use more cores: {need:,.0f} samples/s, the devices' rate, need {need * sample_s:,.1f} workers that decode{cores}"
        yield Advice(more, cause="decode", costs="larger nodes, or more of them")


def _transform(evidence: Evidence) -> _Lines:
    line = evidence.largest_line("transform")
    spent = f"a step waits {_ms(evidence.seconds_per_step('transform'))} for transforms"
    if line:
        spent += f", {line.share or 0.0:.1%} of the steps' time at {line_text(line)}"
    yield from more_workers(evidence, spent)
    name = f"the transform at {line_text(line)}" if line else "the transforms"
    yield f"Make {name} faster, or store their result: {spent}"
    if evidence.stores_originals:
        yield f"Store the images resized (ioprof convert imagenet SRC DST --image rgb256): {spent}"


def _collate(evidence: Evidence) -> _Lines:
    spent = f"a step waits {_ms(evidence.seconds_per_step('collate'))} for collating{_batch(evidence)}"
    yield f"Write samples directly into the batch's memory instead of stacking them afterwards: {spent}"
    yield from more_workers(evidence, spent)


def _delivery(evidence: Evidence) -> _Lines:
    waits = f"the rank waits {_ms(evidence.seconds_per_step('delivery'))} a step for batches that are made and on their way"
    yield (
        f"Send less per batch (uint8 instead of float32, tensors instead of Python objects, which are pickled): {waits}"
        f"{_batch(evidence)}"
    )


def _loader(evidence: Evidence) -> _Lines:
    spent = f"a step waits {_ms(evidence.seconds_per_step('loader'))} for worker time that no read, decode or transform covers"
    if _is_hidden(evidence, evidence.shares):
        spent = f"no read, decode or transform covers {evidence.unnamed_ratio:.1%} of the workers' time"
    detail, line = evidence.largest_detail("loader", LEAST_NAMED_RATIO), evidence.largest_line("loader")
    if detail and detail.name == SAMPLER:
        yield (
            f"Choose the samples of a batch with less work in the sampler (a table made once instead of a loop): it took "
            f"{detail.share:.1%} of the steps' time in the training process, whatever the workers do"
        )
        return
    if detail and detail.name in (WORKER_START, EPOCH_END):
        share = _of_details(evidence, WORKER_START, EPOCH_END)
        yield Advice(
            f"{evidence.options.keep_workers}: starting and ending workers took {share:.1%} of the steps' time; what a worker does "
            "at its start (worker_init_fn, opening the dataset) is then done once",
            cause="loader",
            change=JobChange(persistent_workers=True),
        )
        return
    if detail and detail.name == WORKER_GC:
        yield (
            f"Call gc.freeze() before the workers are started, or gc.disable() in worker_init_fn: Python's garbage collector took "
            f"{detail.share:.1%} of the steps' time in the workers"
        )
        return
    more = list(more_workers(evidence, spent))
    if any(isinstance(entry, Advice) and entry.change and waiting_workers(evidence, "") for entry in more):
        yield more.pop()
    if line:
        yield f"Make {line_text(line)} faster, or do it once before training: it takes {line.share or 0.0:.1%} of the steps' time"
    if not evidence.run.reads_captured:
        yield Advice(f"Record the reads as well: {spent}, and reads were not captured", no_gain=NoGain.OF_RECORDING)
    if evidence.warmup_ratio.get("loader", 0.0) >= 0.5 and evidence.steps.warmup:
        ratio, longer = evidence.warmup_ratio["loader"], evidence.options.with_steps.format(10 * evidence.steps.count)
        longer_run = f"Record a longer run ({longer}): {ratio:.0%} of this time is in the first {evidence.steps.warmup} steps"
        yield Advice(longer_run, no_gain=NoGain.OF_RECORDING)
    yield from more
    if not line:
        yield f"Do less in the dataset's own code, for each sample or once per worker: {spent}"


def _h2d(evidence: Evidence) -> _Lines:
    found, copies = evidence.overlap["h2d"], evidence.charged["h2d"]
    if copies.reason_code is Reason.INCLUDES_PAGEABLE_COPIES:
        yield f"{evidence.options.pinned_copies}: {copies.reason}"
        if evidence.run.job_kind is JobKind.BUILT_IN:
            return
    compute, copied_s = evidence.charged.get("compute"), found.total_s or 0.0
    computed_s = (compute.seconds or 0.0) if compute else 0.0
    if copied_s > computed_s > 0:
        yield (
            "Copy fewer bytes per sample (uint8 instead of float32, converted on the device), or use a device with a faster link: "
            f"copies took {copied_s:,.2f} s, more than the {computed_s:,.2f} s of computing, so that not all of them can be hidden"
        )
        return
    hidden = f"{found.hidden_ratio:.0%} of the copies are" if found.hidden_ratio is not None else "too few copies are"
    yield (
        f"Copy from pinned memory on a stream of its own, one batch ahead: {hidden} hidden behind compute, "
        f"and a step waits {_ms(evidence.seconds_per_step('h2d'))} for copies"
    )


def _exchange(evidence: Evidence) -> _Lines:
    spent = f"a step waits {_ms(evidence.seconds_per_step('exchange'))} for the gradient exchange"
    yield (
        f"Exchange gradients less often: {spent}{_batch(evidence)}; twice the batch size "
        f"({evidence.options.batch_size}) halves the exchanges per sample"
    )
    if max(evidence.straggler_wait.values(), default=0.0) >= 0.01:
        yield from _straggler(evidence)


def _straggler(evidence: Evidence) -> _Lines:
    waited = {rank: sum(causes.values()) for rank, causes in evidence.steps.straggler_wait_s.items()}
    slow = max(waited, key=lambda rank: waited[rank], default=None)
    if slow is None:
        return
    causes = evidence.steps.straggler_wait_s[slow]
    most = max(causes, key=lambda cause: causes[cause])
    yield (
        f"Look at what rank {slow} does before the exchange: the others waited {waited[slow]:.2f} s for it, "
        f"{causes[most]:.2f} s of that for its {most.replace('_', ' ')}"
    )


def _validation(evidence: Evidence) -> _Lines:
    detail = evidence.largest_detail("validation")
    most = f", {detail.share:.1%} of the time for {detail.name}" if detail else ""
    share = evidence.charged["validation"].share or 0.0
    yield f"Validate less often, or on fewer batches: validation took {share:.1%} of the steps' time{most}"


def _checkpoint(evidence: Evidence) -> _Lines:
    spent = f"a step spends {_ms(evidence.seconds_per_step('checkpoint'))} in writing them (mean over all steps)"
    yield f"Write checkpoints less often, to faster storage, or while training goes on: {spent}"


def _gc(evidence: Evidence) -> _Lines:
    spent = f"a step spends {_ms(evidence.seconds_per_step('gc'))} in Python's garbage collector"
    yield f"Call gc.freeze() before the first step, or collect between epochs only (gc.disable(), gc.collect()): {spent}"


def _host(evidence: Evidence) -> _Lines:
    spent = (
        f"a step spends {_ms(evidence.seconds_per_step('host'))} in the ranks' own Python between waiting, copying and computing"
    )
    detail, line = evidence.largest_detail("host", LEAST_NAMED_RATIO), evidence.largest_line("host")
    if line and not (detail and detail.seconds > line.seconds):
        yield f"Do less at {line_text(line)}, or not in every step: it takes {line.share or 0.0:.1%} of the steps' time; {spent}"
    elif detail:
        yield f"Do less in {detail.name}, or not in every step: it takes {detail.share:.1%} of the steps' time; {spent}"
    else:
        yield Advice(f"Put ioprof.span around the parts of the training loop: {spent}", no_gain=NoGain.OF_RECORDING)


def _of_details(evidence: Evidence, *names: str) -> float:
    """Share of the steps' time of parts of `loader`."""
    return sum(detail.share for detail in evidence.charged["loader"].details if detail.name in names)


def _batch(evidence: Evidence) -> str:
    """The batch size, as the end of a clause."""
    return f" ({evidence.run.config.batch_size} samples per batch)" if evidence.run.config.batch_size else ""


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:,.1f} MB/s"


def _ms(seconds: float | None) -> str:
    return "an unknown time" if seconds is None else f"{seconds * 1e3:,.2f} ms"


_ADVICE: Final[dict[str, Callable[[Evidence], _Lines]]] = {
    "compute": _compute,
    "exchange": _exchange,
    "straggler": _straggler,
    "h2d": _h2d,
    "storage": _storage,
    "page_cache": _page_cache,
    "decode": _decode,
    "transform": _transform,
    "collate": _collate,
    "delivery": _delivery,
    "loader": _loader,
    "validation": _validation,
    "checkpoint": _checkpoint,
    "gc": _gc,
    "host": _host,
}
