"""What to change for each bound, with the number that it is based on."""

from collections.abc import Callable, Sequence
from typing import Final

from ioprof.analysis.answer.details import (
    EPOCH_END,
    FORWARD,
    FROM_PAGEABLE,
    LOSS,
    OPTIMIZER,
    SAMPLER,
    TO_HOST,
    WORKER_GC,
    WORKER_START,
)
from ioprof.analysis.answer.evidence import LEAST_NAMED_RATIO, MOSTLY_ONE, Evidence
from ioprof.analysis.answer.host_advice import host_advice
from ioprof.analysis.answer.own_advice import (
    PEERS,
    Lines,
    copy_of,
    decode_less,
    ms,
    of_detail,
    of_line,
    own_advice,
)
from ioprof.analysis.answer.provable import can_pin
from ioprof.analysis.answer.queue_advice import (
    lacks_shards,
    more_workers,
    waiting_workers,
    whole_tensors,
)
from ioprof.analysis.answer.store_advice import store_advice
from ioprof.analysis.answer.use_advice import start_once
from ioprof.analysis.charge.gpu_windows import loop_ratio
from ioprof.analysis.charge.saves import MAY_BE_BESIDE
from ioprof.analysis.cpu.code_lines import asks_process, line_text, shortened
from ioprof.analysis.ranks.straggler_advice import straggler_advice
from ioprof.analysis.reads.read_patterns import AMPLIFIED, SMALL_READS
from ioprof.format.run_record import (
    Advice,
    CodeShare,
    FileReads,
    JobChange,
    JobKind,
    NoGain,
    Reason,
)
from ioprof.format.schema import COLLECTED_AT

_SHORTEST_READ_S: Final = 1e-4
"""Half of the reads were served from memory if their median is below that: then it says nothing of
those that were waited for."""
_MOSTLY_OWN: Final = 0.5
"""Part of a stage that is in lines of the job's own Python, from which on a library's part of it is
not what to change."""
_LEAST_OF_COPIES: Final = 0.1
"""Part of the exposed copies that have one direction, from which on something is advised for it."""
_MUCH_OF_LOOP: Final = 0.5
"""Part of the steps' time in which a loop does not wait for its device, from which on it bounds the
next device."""
_FEWEST_FILES: Final = 10
"""Files that were read, from which on one of them is an exception."""
_LEAST_LOSS: Final = 0.05
"""Share of the steps' time from which on a loss that takes longer than the model's forward pass is
what to make cheaper."""


def advice_for(evidence: Evidence, bound: str, *, is_own: bool) -> list[Advice]:
    """What to change, best first; `is_own`: the training process itself reads and decodes."""
    found = own_advice(evidence, bound) if is_own else _ADVICE[bound](evidence)
    told = [Advice(entry, cause=bound) if isinstance(entry, str) else entry for entry in found]
    if evidence.run.capture.imported_from is None:
        return told
    # of a job that another profiler recorded, what would show more is said beside the answer
    return [each for each in told if each.no_gain is not NoGain.OF_RECORDING]


def _compute(evidence: Evidence) -> Lines:
    rest = (
        f"everything but compute took {1 - (evidence.charged['compute'].share or 0.0):.1%} of the"
        " steps' time"
    )
    ratio = loop_ratio(evidence.run, sum(entry.seconds or 0.0 for entry in evidence.steps.causes))
    if ratio is not None and ratio >= _MUCH_OF_LOOP:
        rest += (
            f", but the loop runs for {ratio:.0%} of it beside the device (Python, and launching"
            " kernels), and bounds a faster one"
        )
    change = JobChange(speeds={"compute": 2.0})
    detail = evidence.largest_detail("compute")
    if detail and detail.name == OPTIMIZER:
        text = (
            "Make the optimizer's step cheaper (fused=True; sparse gradients for large embeddings;"
            f" fewer steps, by accumulating gradients): it takes {detail.share:.1%} of the steps'"
            " time"
        )
        yield of_detail(evidence, text, "compute", detail)
    shares = {part.name: part.share for part in evidence.charged["compute"].details}
    if shares.get(LOSS, 0.0) >= max(_LEAST_LOSS, shares.get(FORWARD, 0.0)):
        # of a loss: other passes have no lines
        line = next((each for each in evidence.code if each.cause == "compute"), None)
        where = f", most of it at {line_text(line)}" if line else ""
        yield Advice(
            "Compute the loss with fewer operations on larger tensors, or compile it"
            f" (torch.compile): before the backward pass it takes {shares[LOSS]:.1%} of the steps'"
            f" time, the model {shares.get(FORWARD, 0.0):.1%}{where}",
            cause="compute",
            no_gain=NoGain.NOT_MODELLED,
        )
    yield Advice(
        f"Use a faster model or device, here one that is twice as fast: {rest}",
        cause="compute",
        change=change,
    )


def _storage(evidence: Evidence) -> Lines:
    seen, dataset = evidence.storage, evidence.dataset
    detail, is_foreign = (
        evidence.largest_detail("storage", LEAST_NAMED_RATIO),
        evidence.run.job_kind is not JobKind.BUILT_IN,
    )
    name = shortened(detail.name) if detail else "the data"
    is_sent = seen.bytes_socket + seen.bytes_pipe > seen.bytes_from_storage + seen.bytes_unknown
    if is_sent and (detail is None or detail.name.startswith(PEERS)):
        yield from _received(evidence, name)
        return
    for pattern in evidence.patterns:
        if pattern.code == AMPLIFIED:
            yield f"Read no more than is wanted: {pattern.remedy}; {pattern.seen}"
        if pattern.code == SMALL_READS and 2e9 * (pattern.seconds or 0.0) >= evidence.making_ns.get(
            "storage", 0
        ):
            yield f"Read in larger pieces ({pattern.remedy}): {pattern.seen}; {_waits(evidence)}"
    if file := _slow_file(evidence.files):
        rest_s = sum(other.seconds for other in evidence.files) - file.seconds
        yield Advice(
            f"Copy {shortened(file.path)} to faster storage, or keep it in memory:"
            f" {file.accesses:,} reads of this one file took {file.seconds:,.2f} s, the slowest"
            f" {ms(file.max_s)}; {_waits(evidence)}",
            cause="storage",
            change=JobChange(speeds={"storage": 1 + file.seconds / rest_s if rest_s else None}),
        )
    depth = evidence.depth
    if depth is not None and depth.bound == "throughput":
        yield (
            f"Keep {evidence.options.workers_name}, and read fewer bytes per sample: storage"
            f" delivered {_rate(depth.bytes_per_s)} with {depth.mean:.1f} reads at a time, and is"
            " bound by throughput, which workers share"
        )
    if depth is not None and depth.bound == "latency" and evidence.has_loader:
        by = (
            "more shards, and as many workers"
            if lacks_shards(evidence)
            else evidence.options.workers_name
        )
        yield (
            f"Read more at a time ({by}, or threads that read ahead): {depth.mean:.1f} reads from"
            f" storage were in progress at a time, {ms(depth.latency_s)} each; storage is bound by"
            " latency, so more reads at a time get more, also where all cores are in use"
        )
    own_copy = evidence.options.local_copy if is_foreign else ""
    if own_copy:
        yield f"{own_copy}: {_waits(evidence)}"
    yield from _demanded(evidence)
    if is_foreign:
        if not own_copy:
            yield (f"{copy_of(evidence, name)} before the job starts: {_waits(evidence)}")
        if evidence.options.fewer_bytes:
            yield f"Read fewer bytes per sample from storage: {evidence.options.fewer_bytes}"
    if dataset.layout == "files" and seen.accesses:
        yield (
            "Convert to LMDB (ioprof convert imagenet SRC DST --layout lmdb): now each of the"
            f" {seen.accesses:,} reads, {seen.bytes / seen.accesses / 1e3:,.0f} kB on average,"
            " opens a file of its own"
        )
    size, memory = dataset.bytes, evidence.run.page_cache_room_bytes
    if size and size > 0 and evidence.run.stage is None:
        fits = (
            f", and memory ({memory / 1e9:,.1f} GB) holds it after the first epoch"
            if memory and size < 0.8 * memory
            else ""
        )
        yield (
            f"Copy the dataset ({size / 1e9:,.2f} GB) to node-local storage before the job"
            f" starts{fits}"
        )
    if depth is None or depth.bound is None:
        took = (
            f", which takes {ms(seen.read_p50_s)} (p50)"
            if (seen.read_p50_s or 0.0) >= _SHORTEST_READ_S
            else ""
        )
        yield from _if_latency(more_workers(evidence, f"each waits for one read at a time{took}"))


def _demanded(evidence: Evidence) -> Lines:
    """What storage would have to deliver, beside what it did."""
    seen, need = evidence.storage, evidence.demand
    if need.bytes_per_s and need.reads_per_s and seen.accesses and evidence.wall_s:
        each = (
            seen.bytes / seen.accesses
            if need.mean_bytes_per_s is None
            else need.bytes_per_s / need.reads_per_s
        )
        most = (
            ""
            if need.mean_bytes_per_s is None
            else f" for the batches that need most ({_rate(need.mean_bytes_per_s)} on average)"
        )
        yield (
            f"Use storage that delivers {_rate(need.bytes_per_s)} in {need.reads_per_s:,.0f}"
            f" reads/s ({each / 1e3:,.0f} kB each): the devices need that{most}, and this run got"
            f" {_rate(seen.bytes / evidence.wall_s)} in {seen.accesses / evidence.wall_s:,.0f}"
            " reads/s"
        )


def _received(evidence: Evidence, name: str) -> Lines:
    """Of data that others send."""
    if of_store := list(store_advice(evidence, "storage")):
        yield from of_store
        return
    waits = f"{_waits(evidence)} that others send"
    yield f"Receive {name} in several streams at once, or copy it to local storage first: {waits}"
    yield from _if_latency(more_workers(evidence, waits), "what sends it", "not known")


def _if_latency(
    found: Lines, who: str = "storage", how: str = "not known; ioprof probe measures it"
) -> Lines:
    """Advice that holds if storage serves more readers at the same latency, where the reads do not
    show whether it does.
    """
    for each in found:
        text = each if isinstance(each, str) else each.action
        text = (
            f"If {who} is bound by latency ({how}), {text[:1].lower()}{text[1:]}; if it is bound "
            "by throughput, workers share that, and only fewer bytes per sample help"
        )
        yield text if isinstance(each, str) else each.replace(action=text)


def _waits(evidence: Evidence) -> str:
    return f"a step waits {ms(evidence.seconds_per_step('storage'))} for data"


def _slow_file(files: Sequence[FileReads]) -> FileReads | None:
    """One file of many that took most of the time of reading; `files` are those that took most, the
    slowest first.
    """
    is_one = len(files) >= _FEWEST_FILES and files[0].seconds >= MOSTLY_ONE * sum(
        file.seconds for file in files
    )
    return files[0] if is_one else None


def _page_cache(evidence: Evidence) -> Lines:
    seen = evidence.storage
    if seen.accesses:
        each = "" if seen.read_p50_s is None else f", {ms(seen.read_p50_s)} each (p50)"
        smaller = (
            "; images stored smaller (ioprof convert ... --image rgb256) are read faster"
            if evidence.stores_originals
            else ""
        )
        yield (
            f"Read fewer bytes per sample: {seen.accesses:,} reads were served from memory, "
            f"{seen.bytes / seen.accesses / 1e3:,.0f} kB on average{each}{smaller}"
        )
    yield from more_workers(
        evidence,
        f"a step waits {ms(evidence.seconds_per_step('page_cache'))} for reads from memory",
    )


def _unused(evidence: Evidence, cause: str) -> Lines:
    """What to change where samples are made that no batch has."""
    if (found := evidence.unused) is None:
        return
    first = (
        "shuffle and select before samples are decoded (.shuffle() before .decode()), and "
        if found.is_decoded
        else ""
    )
    kept = f"{evidence.options.keep_workers[:1].lower()}{evidence.options.keep_workers[1:]}"
    yield Advice(
        f"Throw fewer samples away: {first}{kept}, or make epochs longer: of {found.taken:,}"
        f" samples that were taken out of shards {found.used:,} were in batches that the loop got;"
        " stages such as select drop the others, or they were still in a shuffle buffer when an"
        " epoch or the job ended",
        cause=cause,
        no_gain=NoGain.NOT_MODELLED,
    )


def _decode(evidence: Evidence) -> Lines:
    yield from _unused(evidence, "decode")
    run, samples = evidence.run, evidence.fetched.samples
    sample_s = (
        evidence.fetched.decode_ns / 1e9 / samples
        if samples and evidence.fetched.decode_ns
        else None
    )
    step_s = evidence.seconds_per_step("decode")
    detail = evidence.largest_detail("decode", LEAST_NAMED_RATIO)
    other = decode_less(detail)
    sample = "sample" if other else "image"
    who = "worker" if run.config.workers else "rank"
    cost = (
        f"decoding one {sample} takes {ms(sample_s)} of a {who}"
        if sample_s
        else f"a step waits {ms(step_s)} for decoding"
    )
    if run.config.decode in ("full", "pillow") and evidence.stores_originals:
        yield (
            f"Decode only the crop of each image (--decode roi instead of {run.config.decode}):"
            f" {cost}"
        )
    yield from more_workers(evidence, cost)
    line = evidence.largest_line("decode")
    where = f" at {line_text(line)}" if line else ""
    if other:
        yield f"{other}{where}: {cost}"
    elif evidence.stores_originals:
        yield (
            f"Convert to 256-pixel images (ioprof convert imagenet SRC DST --image rgb256): {cost}"
            " at the original size"
        )
    else:
        yield (
            f"Decode less for each sample{where} (images stored smaller), or use a faster decoder:"
            f" {cost}"
        )
    need = evidence.demand.at_samples_per_s
    if (
        sample_s
        and need
        and need * sample_s
        > max((run.config.ranks or 1) * (run.config.workers or 1), run.cpus or 0)
    ):
        cores = f", and the job has {run.cpus} cores" if run.cpus else ""
        whose = "loops'" if evidence.demand.by_loop else "devices'"
        more = (
            f"Use more cores: {need:,.0f} samples/s, the {whose} rate, need {need * sample_s:,.1f}"
            f" workers that decode{cores}"
        )
        yield Advice(more, cause="decode", costs="larger nodes, or more of them")


def _transform(evidence: Evidence) -> Lines:
    yield from _unused(evidence, "transform")
    line = evidence.largest_line("transform")
    spent = f"a step waits {ms(evidence.seconds_per_step('transform'))} for transforms"
    if line:
        spent += f", {evidence.part_of(line)} at {line_text(line)}"
    yield from more_workers(evidence, spent)
    name = f"the transform at {line_text(line)}" if line else "the transforms"
    text = f"Make {name} faster, or store their result: {spent}"
    # of datasets
    if (detail := evidence.largest_detail("transform", LEAST_NAMED_RATIO)) and detail.name.endswith(
        "Formatter"
    ):
        text = (
            "Format fewer columns, those that the model takes (select_columns, or"
            f" set_format(columns=...)): {spent}"
        )
    yield of_line(evidence, text, "transform", line) if line else text
    if evidence.stores_originals:
        yield f"Store the images resized (ioprof convert imagenet SRC DST --image rgb256): {spent}"


def _collate(evidence: Evidence) -> Lines:
    spent = (
        f"a step waits {ms(evidence.seconds_per_step('collate'))} for collating{_batch(evidence)}"
    )
    line = evidence.largest_line("collate")
    if line and line.library is None:  # its own Python, and no copy of samples by a library
        takes = f"it takes {evidence.part_of(line)}{evidence.of_function(line)}"
        text = (
            f"Make what collates faster at {line_text(line)}, or do it once before training:"
            f" {takes}"
        )
        yield of_line(evidence, text, "collate", line)
    if evidence.own_ratio("collate") < _MOSTLY_OWN:
        yield (
            "Write samples directly into the batch's memory instead of stacking them afterwards:"
            f" {spent}"
        )
    yield from more_workers(evidence, spent)


def _delivery(evidence: Evidence) -> Lines:
    waits = (
        f"the rank waits {ms(evidence.seconds_per_step('delivery'))} a step for batches that are"
        " made and on their way"
    )
    yield from whole_tensors(evidence)
    yield (
        "Send less per batch, in fewer tensors (uint8 instead of float32, one tensor instead of"
        " many, no Python objects, a clone() of what is part of a larger tensor, which is sent"
        f" whole): {waits}{_batch(evidence)}"
    )


def _loader(evidence: Evidence) -> Lines:
    spent = (
        f"a step waits {ms(evidence.seconds_per_step('loader'))} for worker time that no read,"
        " decode or transform covers"
    )
    is_imported = evidence.run.capture.imported_from is not None
    if is_imported:
        spent = f"a step waits {ms(evidence.seconds_per_step('loader'))} for its batch"
    elif evidence.most_work_is_unnamed:
        spent = (
            f"that is {evidence.charged['loader'].workers_share or 0.0:.1%} of the workers' time"
        )
    detail, line = (
        evidence.largest_detail("loader", LEAST_NAMED_RATIO),
        evidence.largest_line("loader"),
    )
    if detail and detail.name == SAMPLER:
        at = f" at {line_text(evidence.sampler_line)}" if evidence.sampler_line else ""
        yield (
            f"Choose the samples of a batch with less work in the sampler{at} (a table made once"
            " instead of a loop; an iterator that is kept, where iter() of the loader is called"
            f" for each batch): it took {detail.share:.1%} of the steps' time in the training"
            " process, whatever the workers do"
        )
        return
    if detail and detail.name in (WORKER_START, EPOCH_END) and not evidence.most_work_is_unnamed:
        share = _of_details(evidence, WORKER_START, EPOCH_END)
        if evidence.run.config.persistent_workers:
            yield (
                "Do less at the start of an epoch, or make epochs longer: the workers are kept"
                f" from one epoch to the next, and starting and ending epochs took {share:.1%} of"
                " the steps' time"
            )
            return
        if evidence.use.passes == 1:
            yield from start_once(evidence)
            return
        yield Advice(
            f"{evidence.options.keep_workers}: starting and ending workers took {share:.1%} of the"
            " steps' time; what a worker does at its start (worker_init_fn, opening the dataset)"
            " is then done once",
            cause="loader",
            change=JobChange(persistent_workers=True),
        )
        return
    if detail and detail.name == WORKER_GC:
        yield (
            "Call gc.freeze() before the workers are started, or gc.disable() in worker_init_fn:"
            f" Python's garbage collector took {detail.share:.1%} of the steps' time in the workers"
        )
        return
    more = list(more_workers(evidence, spent))
    # what the workers do needs no core, so that more of them bring most
    if waiting_workers(evidence, spent):
        yield from more
        more = []
    of_store = list(store_advice(evidence, "loader"))
    if line and not line.library:  # it is the job's own code that takes the time
        yield _at_loader_line(evidence, line)
        yield from of_store
    else:
        yield from of_store
        if line:
            yield _at_loader_line(evidence, line)
    if not evidence.run.reads_captured:
        yield Advice(
            f"Record the reads as well: {spent}, and reads were not captured",
            no_gain=NoGain.OF_RECORDING,
        )
    if (
        evidence.warmup_ratio.get("loader", 0.0) >= 0.5
        and evidence.steps.warmup
        and not evidence.most_work_is_unnamed
    ):
        ratio, longer = (
            evidence.warmup_ratio["loader"],
            evidence.options.with_steps.format(10 * evidence.steps.count),
        )
        longer_run = (
            f"Record a longer run ({longer}): {ratio:.0%} of this time is in the first"
            f" {evidence.steps.warmup} steps"
        )
        yield Advice(longer_run, no_gain=NoGain.OF_RECORDING)
    yield from more
    if not line and evidence.run.config.loader is None and not evidence.fetched.samples:
        yield (
            "Look at what makes the batches: the rank waited for other processes or threads, of"
            " whose work nothing was recorded; put ioprof.span around its parts there"
        )
    elif is_imported:
        yield f"Make batches cheaper, in what their samples read, decode or transform: {spent}"
    elif not line:
        yield f"Do less in the dataset's own code, for each sample or once per worker: {spent}"


def _at_loader_line(evidence: Evidence, line: CodeShare) -> Advice:
    takes = f"it takes {evidence.part_of(line)}{evidence.of_function(line)}"
    if not (evidence.are_served and asks_process(line.library)):
        return of_line(
            evidence,
            f"Make {line_text(line)} faster, or do it once before training: {takes}",
            "loader",
            line,
        )
    text = (
        f"Ask for less at {line_text(line)}, or keep what is asked for where the workers can read"
        f" it themselves (shared tensors, a memory map, a file): {takes}, in which workers wait for"
        " another process of the job, which answers all of them, so that more workers would wait"
        " longer"
    )
    why = "what that process takes of the cores is not replayed"
    return Advice(text, cause="loader", no_gain=NoGain.NOT_MODELLED, reason=why)


def _h2d(evidence: Evidence) -> Lines:
    to_host = evidence.copies_ratio(TO_HOST) or 0.0
    if evidence.copies_to_host:
        yield from _to_host(evidence, to_host)
    if to_host < 1 - _LEAST_OF_COPIES:
        yield from _to_device(evidence)
    if not evidence.copies_to_host and to_host >= _LEAST_OF_COPIES:
        yield from _to_host(evidence, to_host)


def _to_host(evidence: Evidence, part: float) -> Lines:
    """Of results that are copied from the device to the host, which are this part of the exposed
    copies.
    """
    line = evidence.largest_line("h2d") if evidence.copies_to_host else None
    where = f" at {line_text(line)}" if line else ""
    copied = f"{evidence.copied_per_step.get('d2h', 0.0) / 1e6:,.1f} MB"
    waits = (
        f"a step waits {ms(part * evidence.seconds_per_step('h2d'))} for {copied} from the device"
    )
    less = (
        f"Copy results to the host less often{where}, or reduce them on the device first (a mean or"
        " an argmax there)"
    )
    yield Advice(f"{less}: {waits}", cause="h2d", part=part)
    pageable = [
        detail
        for detail in evidence.charged["h2d"].details
        if detail.name == TO_HOST + FROM_PAGEABLE
    ]
    if pageable:
        text = (
            "Copy results into page-locked memory that is kept (torch.empty(...,"
            " pin_memory=True).copy_(..., non_blocking=True)), and read them a step later: copies"
            f" to pageable memory are slower, and the loop waits for each; {waits}"
        )
        yield of_detail(evidence, text, "h2d", pageable[0])


def _to_device(evidence: Evidence) -> Lines:
    found, copies = evidence.overlap["h2d"], evidence.charged["h2d"]
    if copies.reason_code is Reason.INCLUDES_PAGEABLE_COPIES:
        change = JobChange(pin_memory=True) if can_pin(evidence.run) else None
        yield Advice(
            f"{evidence.options.pinned_copies}: {copies.reason}", cause="h2d", change=change
        )
        if evidence.run.job_kind is JobKind.BUILT_IN:
            return
    compute, copied_s = evidence.charged.get("compute"), found.total_s or 0.0
    computed_s = (compute.seconds or 0.0) if compute else 0.0
    if copied_s > computed_s > 0:
        yield (
            "Copy fewer bytes per sample (uint8 instead of float32, converted on the device), or"
            f" use a device with a faster link: copies took {copied_s:,.2f} s, more than the"
            f" {computed_s:,.2f} s of computing, so that not all of them can be hidden"
        )
        return
    hidden = (
        f"{found.hidden_ratio:.0%} of the copies are"
        if found.hidden_ratio is not None
        else "too few copies are"
    )
    yield (
        f"Copy from pinned memory on a stream of its own, one batch ahead: {hidden} hidden behind"
        f" compute, and a step waits {ms(evidence.seconds_per_step('h2d'))} for copies"
    )


def _exchange(evidence: Evidence) -> Lines:
    spent = f"a step waits {ms(evidence.seconds_per_step('exchange'))} for the gradient exchange"
    if sums := evidence.small_sums:
        yield Advice(
            "Sum all gradients by one all_reduce of a flat tensor, or let DistributedDataParallel"
            f" do so: a step makes {sums.per_step} of them, half of at most"
            f" {sums.median_bytes / 1e3:,.1f} kB; {spent}",
            cause="exchange",
            no_gain=NoGain.NOT_MODELLED,
        )
    yield (
        f"Exchange gradients less often: {spent}{_batch(evidence)}; twice the batch size "
        f"({evidence.options.batch_size}) halves the exchanges per sample"
    )
    if max(evidence.straggler_wait.values(), default=0.0) >= 0.01:
        yield from straggler_advice(evidence)


def _validation(evidence: Evidence) -> Lines:
    detail = evidence.largest_detail("validation")
    most = f", {detail.share:.1%} of the time for {detail.name}" if detail else ""
    if line := evidence.largest_line("validation"):
        most += f", {evidence.part_of(line)} at {line_text(line)}"
    share = evidence.charged["validation"].share or 0.0
    what = "passes in evaluation mode" if evidence.evaluates_by_mode else "validation"
    yield (
        f"Validate less often, or on fewer batches: {what} took {share:.1%} of the steps'"
        f" time{most}"
    )


def _checkpoint(evidence: Evidence) -> Lines:
    line = evidence.largest_line("checkpoint")
    where = f", {evidence.part_of(line)} at {line_text(line)}" if line else ""
    spent = (
        f"a step spends {ms(evidence.seconds_per_step('checkpoint'))} in writing them (mean over"
        f" all steps){where}"
    )
    if evidence.saved:
        place = f", in {shortened(evidence.saved.folder)}" if evidence.saved.folder else ""
        spent += f"; {evidence.saved.text}{place}"
    if evidence.saves and evidence.saves.parts:
        largest = max(evidence.saves.parts, key=lambda part: part.seconds)
        spent += f"; {largest.share or 0.0:.0%} of one is {largest.name}"
    yield f"Write checkpoints less often, to faster storage, or while training goes on: {spent}"
    if evidence.saves and not evidence.saves.background_s:
        beside_s = sum(part.seconds for part in evidence.saves.parts if part.name in MAY_BE_BESIDE)
        if beside_s >= LEAST_NAMED_RATIO * evidence.saves.seconds:
            yield Advice(
                "Save asynchronously (torch.distributed.checkpoint.async_save, or a thread that"
                f" writes a copy of the state): {beside_s:,.2f} of the"
                f" {evidence.saves.seconds:,.2f} s for which a checkpoint stops the training can go"
                " on beside the steps; how often to save: ioprof report RUN --mtbf 24h",
                cause="checkpoint",
                no_gain=NoGain.NOT_MODELLED,
            )


def _gc(evidence: Evidence) -> Lines:
    spent = f"a step spends {ms(evidence.seconds_per_step('gc'))} in Python's garbage collector"
    detail = evidence.largest_detail("gc")
    if detail and detail.name.startswith(COLLECTED_AT):
        place, ranks = detail.name.removeprefix(COLLECTED_AT), evidence.run.config.ranks or 1
        together = ", and at the same step on all ranks" if ranks > 1 else ""
        yield (
            f"Call gc.collect() less often (now: {place}){together}, or gc.freeze() before the"
            f" first step, after which it looks only at what is newer: {spent}"
        )
        return
    yield (
        "Call gc.freeze() before the first step, or collect between epochs only (gc.disable(),"
        f" gc.collect()): {spent}"
    )


def _of_details(evidence: Evidence, *names: str) -> float:
    """Share of the steps' time of parts of `loader`."""
    return sum(
        detail.share for detail in evidence.charged["loader"].details if detail.name in names
    )


def _batch(evidence: Evidence) -> str:
    """The batch size, as the end of a clause."""
    return (
        f" ({evidence.run.config.batch_size} samples per batch)"
        if evidence.run.config.batch_size
        else ""
    )


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:,.1f} MB/s"


_ADVICE: Final[dict[str, Callable[[Evidence], Lines]]] = {
    "compute": _compute,
    "exchange": _exchange,
    "straggler": straggler_advice,
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
    "host": host_advice,
}
