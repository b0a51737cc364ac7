"""What to read less of: parts that no sample has, bytes that were read before in the same epoch,
and files that each worker, or each rank of a node, reads.
"""

from collections.abc import Mapping
from typing import Any, Final

from ioprof.analysis.answer.evidence import LEAST_NAMED_RATIO, Evidence
from ioprof.analysis.answer.finding import Found, finding
from ioprof.analysis.answer.own_advice import decoder_kind
from ioprof.analysis.reads.read_patterns import MAP_READAHEAD
from ioprof.analysis.reads.read_use import MOST_AMPLIFICATION
from ioprof.format.run_record import (
    Facts,
    Finding,
    JobChange,
    NoGain,
    RepeatedReads,
    ReturnedBytes,
)

READ_LESS: Final = ("read_part", "read_less", "read_again", "divide_data")
"""Codes of findings of fewer bytes for the same batches."""
_CAUSES: Final = ("storage", "page_cache")
_LEAST_SHARE: Final = 0.005
"""Of the time of the steps: a cause of less changes nothing, and a replay may know none of it."""
OF_READERS: Final = ("storage", "page_cache", "decode", "transform", "loader")
"""What a worker does with what it reads, before a batch is put together."""


def read_advice(evidence: Evidence) -> Found:
    """Fewer bytes for the same batches. Nothing where storage is bound by latency, and a read takes
    as long whatever it fetches.
    """
    reads, shares = evidence.reads, evidence.shares
    cause = max(_CAUSES, key=lambda each: shares.get(each, 0.0))
    if reads.depth is not None and reads.depth.bound == "latency":
        return
    is_known = reads.depth is not None and reads.depth.bound == "throughput"
    amplified = next((each for each in reads.patterns if "ratio" in each.facts), None)
    if (found := reads.returned) is not None and _is_unused(evidence, found):
        facts = _returned_facts(evidence, found, cause)
        yield _faster("read_part", cause, found.ratio, **facts).replace(is_bound=True)
    elif amplified is not None:
        facts, ratio = {"pattern": amplified.code, **amplified.facts}, amplified.facts["ratio"]
        yield _faster("read_less", "storage", ratio, **facts).replace(is_bound=not is_known)
    elif (again := reads.repeated) is not None:
        speedup = _without_repeated(evidence, again, cause)
        facts = {"file": again.file, "once_bytes": again.file_bytes, "times": again.times_read}
        if speedup is None or speedup > 1:
            yield _faster("read_again", cause, speedup, **facts).replace(is_bound=not is_known)


def divided_data(evidence: Evidence) -> Found:
    """Where each worker of an iterable dataset reads all of it. How much of a worker's time is for
    samples of the others is known where it is seen what workers do for a record: else at most all
    but one part of it.
    """
    found = evidence.reads.by_each_worker
    if found is None:
        return
    facts: Facts = {"file": found.file, "workers": found.workers, "bytes": found.file_bytes}
    if (work := found.repeated) is None:
        speeds = dict.fromkeys(OF_READERS, float(found.workers))
        yield less_of_readers("divide_data", evidence, speeds, **facts)
        return
    decodes = work.kind == "decode"
    images = decodes and decoder_kind(evidence.largest_detail("decode", LEAST_NAMED_RATIO)) is None
    facts |= {"calls": work.calls, "decodes": decodes, "images": images}
    facts |= {} if decodes else {"call": work.call}
    told = less_of_readers("divide_data", evidence, work.by_cause, **facts)
    yield told.replace(is_bound=False)


def less_of_readers(
    code: str, evidence: Evidence, speeds: Mapping[str, float | None], **facts: Any
) -> Finding:
    """What is done before a batch is put together is so many times as fast, at most; None: it costs
    nothing. `speeds`: of each of `OF_READERS`.
    """
    shares = {
        each: share
        for each in OF_READERS
        if (share := evidence.shares.get(each, 0.0)) >= _LEAST_SHARE
    }
    cause = max(shares, key=lambda each: shares[each], default="loader")
    change = JobChange(speeds={each: speeds[each] for each in shares or (cause,)})
    return finding(code, cause=cause, change=change, **facts).replace(is_bound=True)


def shared_reads(evidence: Evidence) -> Found:
    """Where ranks of a node read the same files from storage before the first step."""
    if (found := evidence.reads.shared) is not None:
        facts: Facts = {
            "file": found.file,
            "ranks": found.ranks,
            "once_bytes": found.file_bytes,
            "read_bytes": found.read_bytes,
            "took_s": found.seconds,
        }
        yield finding("share_reads", no_gain=NoGain.NOT_OF_STEPS, **facts)


def _faster(code: str, cause: str, speedup: float | None, **facts: Any) -> Finding:
    return finding(code, cause=cause, change=JobChange(speeds={cause: speedup}), **facts)


def _is_unused(evidence: Evidence, found: ReturnedBytes) -> bool:
    """Whether more was read than is returned. Of a map only where the kernel read ahead of random
    places: how much of what it fetched was touched is not known else.
    """
    is_random = any(each.code == MAP_READAHEAD for each in evidence.reads.patterns)
    return found.ratio >= MOST_AMPLIFICATION and (is_random or not found.mapped)


def _returned_facts(evidence: Evidence, found: ReturnedBytes, cause: str) -> Facts:
    each = found.samples or 1.0
    decodes = evidence.making_ns.get("decode", 0) > 0
    decoder = decoder_kind(evidence.largest_detail("decode", LEAST_NAMED_RATIO))
    return {
        "file": found.file,
        "of_sample": found.samples is not None,
        "read_bytes": found.read_bytes / each,
        "returned_bytes": found.returned_bytes / each,
        "ratio": found.ratio,
        "mapped": found.mapped,
        "stored": cause == "storage",
        "images": decodes and decoder is None,
    }


def _without_repeated(evidence: Evidence, again: RepeatedReads, cause: str) -> float | None:
    """How much faster reads of this cause are without those bytes; None: they take no time."""
    seen = evidence.storage
    whole, repeated = (
        (seen.bytes_from_storage, again.again_from_storage)
        if cause == "storage"
        else (seen.bytes_from_cache, again.again_from_cache)
    )
    return whole / (whole - repeated) if whole > repeated else None
