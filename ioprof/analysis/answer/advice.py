"""What to change for each bound, with the facts that it is based on."""

from collections.abc import Callable, Sequence
from typing import Final

from ioprof.analysis.answer.details import TO_HOST
from ioprof.analysis.answer.evidence import LEAST_NAMED_RATIO, MOSTLY_ONE, STARTS, Evidence
from ioprof.analysis.answer.finding import Found, finding, not_modelled, of_detail, of_line
from ioprof.analysis.answer.host_advice import host_advice
from ioprof.analysis.answer.own_advice import decoder_kind, is_on_node, own_advice
from ioprof.analysis.answer.provable import can_pin
from ioprof.analysis.answer.queue_advice import (
    lacks_shards,
    more_workers,
    waiting_workers,
    whole_tensors,
)
from ioprof.analysis.answer.store_advice import store_advice
from ioprof.analysis.answer.use_advice import starts
from ioprof.analysis.charge.gpu_windows import loop_ratio
from ioprof.analysis.charge.saves import MAY_BE_BESIDE
from ioprof.analysis.cpu.code_lines import line_text
from ioprof.analysis.ranks.straggler_advice import straggler_advice
from ioprof.analysis.reads.read_patterns import SMALL_READS
from ioprof.format.run_record import (
    CodeShare,
    CpuLimit,
    Facts,
    FileReads,
    Finding,
    JobChange,
    JobKind,
    NoGain,
    PartCode,
    Reason,
    Saves,
)
from ioprof.format.schema import TASK_ARGUMENTS

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
_MADE: Final = ("storage", "page_cache", "decode", "transform", "loader")
"""What is done for each sample, whether a batch has it or not."""
_LEAST_ASKED: Final = 0.2
"""Part of a line's samples in which it waits for another process to answer, from which on that is
said."""
_LEAST_LOSS: Final = 0.05
"""Share of the steps' time from which on a loss that takes longer than the model's forward pass is
what to make cheaper."""
_MOST_OF_MEMORY: Final = 0.8
"""Part of the memory for the page cache that a dataset may take to stay there."""
_KEEPS_COPY: Final = (JobKind.WEBDATASET, JobKind.LITDATA, JobKind.STREAMING)
"""Libraries that keep a local copy of their shards."""


def advice_for(evidence: Evidence, bound: str, *, is_own: bool) -> list[Finding]:
    """What to change, best first; `is_own`: the training process itself reads and decodes."""
    found = own_advice(evidence, bound) if is_own else _ADVICE[bound](evidence)
    told = [
        each.replace(cause=bound)
        if each.cause is None and each.change is None and each.no_gain is None
        else each
        for each in found
    ]
    if evidence.run.capture.imported_from is None:
        return told
    # of a job that another profiler recorded, what would show more is said beside the answer
    return [each for each in told if each.no_gain is not NoGain.OF_RECORDING]


def _compute(evidence: Evidence) -> Found:
    ratio = loop_ratio(evidence.run, sum(entry.seconds or 0.0 for entry in evidence.steps.causes))
    detail = evidence.largest_detail("compute")
    if evidence.run.config.detects_anomalies:
        yield not_modelled("anomalies", "compute")
    if detail and detail.code is PartCode.OPTIMIZER:
        yield of_detail(evidence, "optimizer", "compute", detail)
    shares = {part.code: part.share for part in evidence.charged["compute"].details}
    loss, forward = shares.get(PartCode.LOSS, 0.0), shares.get(PartCode.FORWARD, 0.0)
    line, computed = (
        next((each for each in evidence.code if each.cause == "compute"), None),
        sum(shares.values()),
    )
    others = {code: shares.get(code, 0.0) for code in (PartCode.GRADIENTS, PartCode.INFERENCE)}
    for code, share in others.items():
        if share >= max(_LEAST_LOSS, loss):
            mine = line if share == max(others.values()) else None  # the largest part's
            found = finding(code.value, share=share, **evidence.line_facts(mine))
            yield found.replace(part=share / computed)
    if loss >= max(_LEAST_LOSS, forward):
        yield not_modelled(
            "loss", "compute", share=loss, model=forward, **evidence.line_facts(line)
        )
    yield finding(
        "device",
        cause="compute",
        change=JobChange(speeds={"compute": 2.0}),
        rest=1 - (evidence.charged["compute"].share or 0.0),
        loop=ratio if ratio is not None and ratio >= _MUCH_OF_LOOP else None,
    )


def _storage(evidence: Evidence) -> Found:
    seen, dataset, depth = evidence.storage, evidence.dataset, evidence.reads.depth
    detail = evidence.largest_detail("storage", LEAST_NAMED_RATIO)
    step_s, name = evidence.seconds_per_step("storage"), detail.name if detail else None
    is_sent = seen.bytes_socket + seen.bytes_pipe > seen.bytes_from_storage + seen.bytes_unknown
    if is_sent and (detail is None or detail.code is PartCode.PEER):
        if of_store := list(store_advice(evidence, "storage")):
            yield from of_store
            return
        by_socket = seen.bytes_socket >= seen.bytes_pipe
        yield finding("receive_streams", file=name, step_s=step_s, by_socket=by_socket)
        yield from _if_latency(more_workers(evidence, "peers", step_s=step_s), "peer")
        return
    for pattern in evidence.reads.patterns:
        if pattern.code == SMALL_READS and 2e9 * (pattern.seconds or 0.0) >= evidence.making_ns.get(
            "storage", 0
        ):
            facts: Facts = {"pattern": pattern.code, "took_s": pattern.seconds, **pattern.facts}
            yield finding("larger_reads", step_s=step_s, **facts)
    if file := _slow_file(evidence.reads.files):
        rest_s = sum(other.seconds for other in evidence.reads.files) - file.seconds
        yield finding(
            "slow_file",
            cause="storage",
            change=JobChange(speeds={"storage": 1 + file.seconds / rest_s if rest_s else None}),
            file=file.path,
            reads=file.accesses,
            took_s=file.seconds,
            most_s=file.max_s,
            step_s=step_s,
        )
    if depth is not None and depth.bound == "throughput":
        yield finding("fewer_bytes_of_storage", bytes_per_s=depth.bytes_per_s, depth=depth.mean)
    if depth is not None and depth.bound == "latency" and evidence.has_loader:
        facts = {"depth": depth.mean, "latency_s": depth.latency_s}
        yield finding("read_ahead", lacks_shards=lacks_shards(evidence), **facts)
    kind = evidence.run.job_kind
    if kind in _KEEPS_COPY:
        yield finding("local_copy", step_s=step_s)
    yield from _demanded(evidence)
    if kind not in (JobKind.BUILT_IN, *_KEEPS_COPY):
        yield finding("copy", file=name, step_s=step_s, on_node=is_on_node(evidence))
    if kind is JobKind.HF_DATASETS:
        yield finding("columns")
    if dataset.layout == "files" and seen.accesses:
        yield finding("to_lmdb", reads=seen.accesses, each_bytes=seen.bytes / seen.accesses)
    size, memory = dataset.bytes, evidence.run.page_cache_room_bytes
    if size and size > 0 and evidence.run.stage is None:
        fits = memory if memory and size < _MOST_OF_MEMORY * memory else None
        yield finding("stage", dataset_bytes=size, memory_bytes=fits)
    if depth is None or depth.bound is None:
        p50_s = seen.read_p50_s or 0.0
        p50 = p50_s if p50_s >= _SHORTEST_READ_S else None
        yield from _if_latency(more_workers(evidence, "reads", p50_s=p50), "storage")


def _demanded(evidence: Evidence) -> Found:
    """What storage would have to deliver, beside what it did."""
    seen, need = evidence.storage, evidence.demand
    if need.bytes_per_s and need.reads_per_s and seen.accesses:
        is_mean = need.mean_bytes_per_s is None
        yield finding(
            "storage",
            bytes_per_s=need.bytes_per_s,
            reads_per_s=need.reads_per_s,
            each_bytes=seen.bytes / seen.accesses
            if is_mean
            else need.bytes_per_s / need.reads_per_s,
            mean_bytes_per_s=need.mean_bytes_per_s,
            got_bytes_per_s=need.got_bytes_per_s,
        )


def _if_latency(found: Found, who: str) -> Found:
    """Findings that hold if what is read from serves more readers at the same latency, where the
    reads do not show whether it does.
    """
    return (each.replace(facts={**each.facts, "if_latency": who}) for each in found)


def _slow_file(files: Sequence[FileReads]) -> FileReads | None:
    """One file of many that took most of the time of reading; `files` are those that took most, the
    slowest first.
    """
    is_one = len(files) >= _FEWEST_FILES and files[0].seconds >= MOSTLY_ONE * sum(
        file.seconds for file in files
    )
    return files[0] if is_one else None


def _page_cache(evidence: Evidence) -> Found:
    seen = evidence.storage
    if seen.accesses:
        yield finding(
            "fewer_bytes",
            reads=seen.accesses,
            each_bytes=seen.bytes / seen.accesses,
            originals=evidence.stores_originals,
        )
    step_s = evidence.seconds_per_step("page_cache")
    yield from more_workers(evidence, "page_cache", step_s=step_s)


def _unused(evidence: Evidence, cause: str) -> Found:
    """What to change where samples are made that no batch has."""
    if (found := evidence.unused) is not None:
        facts: Facts = {"taken": found.taken, "used": found.used, "decoded": found.is_decoded}
        less = JobChange(speeds=dict.fromkeys(_MADE, found.taken / max(1, found.used)))
        yield finding("unused_samples", cause=cause, change=less, **facts).replace(is_bound=True)


def _decode(evidence: Evidence) -> Found:
    yield from _unused(evidence, "decode")
    run, samples = evidence.run, evidence.fetched.samples
    sample_s = (
        evidence.fetched.decode_ns / 1e9 / samples
        if samples and evidence.fetched.decode_ns
        else None
    )
    detail = evidence.largest_detail("decode", LEAST_NAMED_RATIO)
    if detail and detail.subject == TASK_ARGUMENTS:
        yield of_detail(evidence, "smaller_tasks", "decode", detail)
        return
    decoder = decoder_kind(detail)
    cost: Facts = {
        "sample_s": sample_s,
        "step_s": evidence.seconds_per_step("decode"),
        "images": not decoder and not evidence.repeats_work,
        "by_workers": bool(run.config.workers),
    }
    if run.config.decode in ("full", "pillow") and evidence.stores_originals:
        yield finding("decode_crop", decode=run.config.decode, **cost)
    yield from more_workers(evidence, "decode", **cost)
    line = evidence.line_facts(evidence.largest_line("decode"))
    if decoder or not evidence.stores_originals:
        yield finding("decode_less", decoder=decoder, **line, **cost)
    else:
        yield finding("smaller_images", **cost)
    need, makers = evidence.demand.at_samples_per_s, run.config.workers or 1
    most = max((run.config.ranks or 1) * makers, run.cpus or 0)
    has_quota = evidence.cpu is not None and CpuLimit.QUOTA in evidence.cpu.limits
    if sample_s and need and need * sample_s > most and not has_quota:  # which is raised first
        facts: Facts = {"samples_per_s": need, "workers": need * sample_s, "cpus": run.cpus}
        yield finding("cores", cause="decode", by_loop=evidence.demand.by_loop, **facts)


def _transform(evidence: Evidence) -> Found:
    yield from _unused(evidence, "transform")
    line, step_s = evidence.largest_line("transform"), evidence.seconds_per_step("transform")
    facts = evidence.line_facts(line)
    yield from more_workers(evidence, "transform", step_s=step_s, **facts)
    detail = evidence.largest_detail("transform", LEAST_NAMED_RATIO)
    is_formatter = detail is not None and detail.subject.endswith("Formatter")  # of datasets
    code = "format_columns" if is_formatter else "transform"
    for each in (*([line] if line else []), *evidence.further_functions("transform", line)):
        yield of_line(evidence, code, "transform", each, step_s=step_s)
    if not line:
        yield finding(code, step_s=step_s)
    if evidence.stores_originals:
        yield finding("resized_images", step_s=step_s, **facts)


def _collate(evidence: Evidence) -> Found:
    spent: Facts = {
        "step_s": evidence.seconds_per_step("collate"),
        "batch_size": evidence.run.config.batch_size or None,
    }
    line = evidence.largest_line("collate")
    if line and line.library is None:  # its own Python, and no copy of samples by a library
        yield of_line(evidence, "collate_line", "collate", line)
    if evidence.own_ratio("collate") < _MOSTLY_OWN:
        yield finding("collate", **spent)
    yield from more_workers(evidence, "collate", **spent)


def _delivery(evidence: Evidence) -> Found:
    yield from whole_tensors(evidence)
    per_step = evidence.use.per_step
    yield finding(
        "send_less",
        step_s=evidence.seconds_per_step("delivery"),
        batch_size=evidence.run.config.batch_size or None,
        per_step=per_step if per_step > 1 else None,
    )


def _loader(evidence: Evidence) -> Found:
    is_imported, unnamed = (
        evidence.run.capture.imported_from is not None,
        evidence.most_work_is_unnamed,
    )
    loader = evidence.charged.get("loader")
    spent: Facts = {
        "step_s": evidence.seconds_per_step("loader"),
        "imported": is_imported,
        "workers_share": loader.workers_share if loader and unnamed else None,
    }
    detail, line = (
        evidence.largest_detail("loader", LEAST_NAMED_RATIO),
        evidence.largest_line("loader"),
    )
    if detail and detail.code is PartCode.SAMPLER:
        at = evidence.sampler_line
        yield finding("sampler", line=line_text(at) if at else None, share=detail.share)
        return
    if detail and detail.code in STARTS and not unnamed:
        yield from starts(evidence, "loader")
        return
    if detail and detail.code is PartCode.WORKER_GC:
        yield finding("worker_gc", share=detail.share)
        return
    if detail and detail.code is PartCode.FLUSHES:
        facts: Facts = {"line": line_text(line) if line else None}
        yield of_detail(evidence, "flush_samples", "loader", detail, **facts)
    more = list(more_workers(evidence, "loader", **spent))
    # what the workers do needs no core, so that more of them bring most
    if waiting_workers(evidence, "loader"):
        yield from more
        more = []
    of_store = list(store_advice(evidence, "loader"))
    lines = (*([line] if line else []), *evidence.further_functions("loader", line))
    of_line = [_at_loader_line(evidence, each) for each in lines]
    # first the job's own code, if it is that which takes the time
    yield from [*of_line, *of_store] if line and not line.library else [*of_store, *of_line]
    if not evidence.run.reads_captured:
        yield finding("record_reads", no_gain=NoGain.OF_RECORDING, **spent)
    ratio, warmup = evidence.warmup_ratio.get("loader", 0.0), evidence.steps.warmup
    if ratio >= 0.5 and warmup and not unnamed:
        facts = {"steps": 10 * evidence.steps.count, "ratio": ratio, "warmup": warmup}
        yield finding("longer_run", no_gain=NoGain.OF_RECORDING, **facts)
    yield from more
    if not line and evidence.run.config.loader is None and not evidence.fetched.samples:
        yield finding("unseen_maker")
    elif is_imported or not line:
        yield finding("dataset", **spent)


def _at_loader_line(evidence: Evidence, line: CodeShare) -> Finding:
    asks = (line.asks or 0.0) >= _LEAST_ASKED
    return of_line(evidence, "served_line" if asks else "loader_line", "loader", line)


def _h2d(evidence: Evidence) -> Found:
    to_host = evidence.copies_ratio(TO_HOST) or 0.0
    if evidence.copies_to_host:
        yield from _to_host(evidence, to_host)
    if to_host < 1 - _LEAST_OF_COPIES:
        yield from _to_device(evidence)
    if not evidence.copies_to_host and to_host >= _LEAST_OF_COPIES:
        yield from _to_host(evidence, to_host)


def _to_host(evidence: Evidence, part: float) -> Found:
    """Of results that are copied from the device to the host, which are this part of the exposed
    copies.
    """
    line = evidence.largest_line("h2d") if evidence.copies_to_host else None
    facts: Facts = {
        "step_s": part * evidence.seconds_per_step("h2d"),
        "num_bytes": evidence.copied_per_step.get("d2h", 0.0),
    }
    found = finding("copy_results", cause="h2d", **facts, **evidence.line_facts(line))
    yield found.replace(part=part)
    for detail in evidence.charged["h2d"].details:
        if detail.code is PartCode.PAGEABLE_TO_HOST:
            yield of_detail(evidence, "pin_results", "h2d", detail, **facts)


def _to_device(evidence: Evidence) -> Found:
    found, copies = evidence.overlap["h2d"], evidence.charged["h2d"]
    if copies.reason_code is Reason.INCLUDES_PAGEABLE_COPIES:
        change = JobChange(pin_memory=True) if can_pin(evidence.run) else None
        yield finding("pin_memory", cause="h2d", change=change, **copies.reason_facts)
        if evidence.run.job_kind is JobKind.BUILT_IN:
            return
    compute, copied_s = evidence.charged.get("compute"), found.total_s or 0.0
    computed_s = (compute.seconds or 0.0) if compute else 0.0
    if copied_s > computed_s > 0:
        yield finding("copy_less", copied_s=copied_s, computed_s=computed_s)
        return
    step_s = evidence.seconds_per_step("h2d")
    yield finding("copy_ahead", hidden=found.hidden_ratio, step_s=step_s)


def _exchange(evidence: Evidence) -> Found:
    step_s = evidence.seconds_per_step("exchange")
    if sums := evidence.small_sums:
        facts: Facts = {"sums": sums.per_step, "median_bytes": sums.median_bytes}
        yield finding("flat_sum", step_s=step_s, **facts)
    if (times := evidence.exchanges_per_update) > 1:
        yield finding("exchange_once", times=times, step_s=step_s).replace(part=1 - 1 / times)
    batch_size = evidence.run.config.batch_size or None
    yield finding("exchange_less", step_s=step_s, batch_size=batch_size).replace(part=0.5)
    if max(evidence.straggler_wait.values(), default=0.0) >= 0.01:
        yield from straggler_advice(evidence)


def _validation(evidence: Evidence) -> Found:
    detail = evidence.largest_detail("validation")
    yield finding(
        "validate_less",
        by_mode=evidence.evaluates_by_mode,
        share=evidence.charged["validation"].share or 0.0,
        part=detail.name if detail else None,
        part_share=detail.share if detail else None,
        **evidence.line_facts(evidence.largest_line("validation")),
    )


def _checkpoint(evidence: Evidence) -> Found:
    saves = evidence.saves
    parts = saves.parts if saves else ()
    largest = max(parts, key=lambda part: part.seconds, default=None)
    yield finding(
        "checkpoint_less",
        step_s=evidence.seconds_per_step("checkpoint"),
        **evidence.line_facts(evidence.largest_line("checkpoint")),
        **(_of_saves(saves) if saves else {}),
        largest=largest.name if largest else None,
        largest_share=(largest.share or 0.0) if largest else None,
    )
    beside_s = sum(part.seconds for part in parts if part.name in MAY_BE_BESIDE)
    if saves and not saves.background_s and beside_s >= LEAST_NAMED_RATIO * saves.seconds:
        yield not_modelled(
            "save_asynchronously", "checkpoint", beside_s=beside_s, took_s=saves.seconds
        )


def _of_saves(saves: Saves) -> Facts:
    """How often each rank wrote a checkpoint, and how large, how fast and where, if known."""
    took_s = saves.seconds + saves.background_s
    if not saves.bytes or not took_s:
        return {}
    return {
        "checkpoints": saves.number,
        "ranks": saves.ranks if saves.ranks > 1 else None,
        "each_bytes": saves.bytes,
        "bytes_per_s": saves.bytes / took_s,
        "folder": saves.folder,
    }


def _gc(evidence: Evidence) -> Found:
    detail, ranks = evidence.largest_detail("gc"), evidence.run.config.ranks or 1
    is_called = detail is not None and detail.code is PartCode.COLLECTED
    line = None if is_called else evidence.largest_line("gc")
    yield finding(
        "gc_called" if is_called else "gc",
        place=detail.subject if detail and is_called else None,
        line=line_text(line) if line else None,
        together=ranks > 1,
        step_s=evidence.seconds_per_step("gc"),
    )


_ADVICE: Final[dict[str, Callable[[Evidence], Found]]] = {
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
