"""The answer: what the job waited for most, by its code and its facts, and what to change."""

from collections.abc import Collection
from typing import Final

from ioprof.analysis.answer.advice import advice_for
from ioprof.analysis.answer.details import PAGEABLE
from ioprof.analysis.answer.doubts import with_doubts
from ioprof.analysis.answer.evidence import IDLE_RATIO, MOSTLY_ONE, Evidence
from ioprof.analysis.answer.job_verdict import with_loading_rank
from ioprof.analysis.answer.queue_advice import deeper_queue
from ioprof.analysis.answer.store_advice import main_store, store_facts
from ioprof.analysis.answer.use_advice import comes_first, keep_cache, use_advice
from ioprof.analysis.cpu.code_lines import line_text
from ioprof.analysis.cpu.cpu_time import LEAST_DELAY_RATIO
from ioprof.analysis.ranks.stragglers import late_ranks
from ioprof.analysis.ranks.unrecorded import verdict_without
from ioprof.analysis.reads.lineage import LEAVES
from ioprof.format.run_record import Facts, Finding, NoGain, PartCode, RunRecord, Verdict
from ioprof.format.schema import PYTHON_PROGRAM

_WITH_RANKS: Final = ("straggler", "exchange")
"""Causes that what other ranks do makes longer or shorter; they are advised on where they are the
bound."""
_MOST_OTHERS: Final = 2
"""Other causes than the bound that are advised on."""
_LEAST_DELAY: Final = 0.05
"""Part of the time in which a rank can run that it waits for a core, from which on what the workers
do costs the model time."""
_WHOLE: Final = ("storage", "decode", "validation", "checkpoint", "gc", "straggler")
"""Causes of which all may be left out; of others a line or a setting is named."""
_LEAST_OF_CANDIDATE: Final = 0.02
"""Share of the steps' time, or of the workers', below which removing a cause brings nothing that is
worth a word."""
_LEAST_OF_LOADER: Final = 0.6
"""Part of the waiting for batches from which on one of several loaders is named for it."""
_LEAST_LATE: Final = 0.01
"""Of the steps' time, for waits for late ranks that are told."""
_LEAST_PRINTED: Final = 0.0005
"""The same, where a share that is told has them: less is printed as 0.0 %."""
_LEAST_OF_STAGE: Final = 0.01
"""Part of the time of making batches from which on a stage is named."""


def verdict(evidence: Evidence) -> Verdict:
    """`bound_by`, and why."""
    shares = evidence.shares
    if not sum(shares.values()):
        if evidence.steps.count and evidence.run.capture.imported_from:
            return Verdict(None, "").said("no_device_times")
        return Verdict(None, "").said("no_step", **_unobserved(evidence.run))
    compared = _with_computing_line(shares, evidence)
    bound, is_own = _bound_by(compared, evidence)
    if evidence.missing and (short := verdict_without(evidence, bound, evidence.missing, shares)):
        return short
    found = advice_for(evidence, bound, is_own=is_own)
    if bound in LEAVES and not is_own:
        found = [*deeper_queue(evidence), *found]
    found += [each for each in _of_others(evidence, compared, bound, is_own) if each not in found]
    of_use = list(use_advice(evidence))
    found = [*(each for each in of_use if comes_first(each, evidence, bound)), *found]
    found = keep_cache(found, evidence)
    possible = [*of_use, *_candidates(evidence, shares)]
    more = (each for each in possible if each.no_gain is None and not _is_in(each, found))
    stages = evidence.own if is_own else evidence.work_ns
    answer = Verdict(bound, "", tuple(found), candidates=tuple(more))
    answer = _of_own(answer, evidence, shares) if is_own else _said(answer, evidence, shares)
    answer = with_doubts(
        answer, evidence, _alternatives(compared, evidence), stages if bound in stages else {}
    )
    return with_loading_rank(answer, evidence)


def _is_in(one: Finding, others: Collection[Finding]) -> bool:
    """Whether one of them says the same."""
    return any((one.code, one.facts) == (each.code, each.facts) for each in others)


def _of_others(
    evidence: Evidence, shares: dict[str, float], bound: str, is_own: bool
) -> list[Finding]:
    """The first advice of each other cause that takes much of the time; all causes of waiting for
    batches have the bound's.
    """
    own = {cause: share for cause, share in evidence.own.items() if share >= IDLE_RATIO}
    waits, others = _groups(shares, evidence)
    found = [(share, cause, True) for cause, share in own.items() if not is_own]
    if is_own or bound not in LEAVES:
        largest = max(waits, key=lambda cause: waits[cause], default=None)
        found += [(sum(waits.values()), largest, False)] if largest else []
    found += [
        (share, cause, False)
        for cause, share in others.items()
        if cause not in (bound, *_WITH_RANKS)
    ]
    large = sorted((entry for entry in found if entry[0] >= IDLE_RATIO), reverse=True)
    firsts = [
        next(iter(advice_for(evidence, cause, is_own=of_own)), None)
        for _, cause, of_own in large[:_MOST_OTHERS]
    ]
    return [each for each in firsts if each is not None and each.no_gain is not NoGain.OF_RECORDING]


def _candidates(evidence: Evidence, shares: dict[str, float]) -> list[Finding]:
    """Findings of every cause that takes some of the time, to be told if the replay finds a gain in
    them: what is waited for least may be what all else depends on.
    """
    found = list[Finding]()
    for cause, share in shares.items():
        charged = evidence.charged.get(cause)
        worked = (charged.workers_share if charged else None) or 0.0
        if cause == "straggler" and charged:  # of all causes that made ranks late
            share = charged.share or 0.0
        if charged is None or max(share, worked) < _LEAST_OF_CANDIDATE:
            continue
        is_own = evidence.own.get(cause, 0.0) > 0.5 * share
        for each in advice_for(evidence, cause, is_own=is_own):
            is_named = each.part is not None or each.change is not None or cause in _WHOLE
            if each.no_gain is None and is_named and not _is_in(each, found):
                found.append(each)
    return found


def _with_computing_line(shares: dict[str, float], evidence: Evidence) -> dict[str, float]:
    """The shares, where a line of the loop that itself computes counts as computation."""
    line = evidence.computing_line
    if line is None:
        return shares
    share = min(line.share or 0.0, shares.get("host", 0.0))
    return shares | {"compute": shares["compute"] + share, "host": shares["host"] - share}


def _groups(
    shares: dict[str, float], evidence: Evidence
) -> tuple[dict[str, float], dict[str, float]]:
    """The shares of waiting for batches by cause, and of all other causes than compute."""
    waits = {
        cause: max(share - evidence.own.get(cause, 0.0), 0.0)
        for cause, share in shares.items()
        if cause in LEAVES
    }
    return waits, {
        cause: share for cause, share in shares.items() if cause != "compute" and cause not in waits
    }


def _alternatives(shares: dict[str, float], evidence: Evidence) -> dict[str, float]:
    """What `_bound_by` chooses from, where it is not compute: shares by what it is."""
    waits, others = _groups(shares, evidence)
    return {
        "batches": sum(waits.values()),
        "own": sum(evidence.own.values()),
        **others,
    }


def _unobserved(run: RunRecord) -> Facts:
    """Why perhaps no step was recorded."""
    if sum(process.lost or 0 for process in run.processes):
        return {"disk_was_full": True}
    if run.capture.unobserved:
        hook = run.capture.unobserved[0]
        return {"unobserved": hook.unobserved, "why": hook.why}
    noted = (process.reads.noted for process in run.processes if process.reads)
    return {"without_hooks": any(PYTHON_PROGRAM in each for each in noted)}


def _bound_by(shares: dict[str, float], evidence: Evidence) -> tuple[str, bool]:
    """The greatest cause after compute, where all causes of waiting for a batch count as one, and
    whether the training process itself spent that time on reading and decoding, of which all causes
    count as one too.

    The wait for a batch is named for the stage that takes most of all the workers' time, not of the
    part of it that lies in a wait: where workers are always busy a wait begins late in their work,
    and so overlaps with the last stages only.
    """
    own, making = evidence.own, evidence.work_ns
    waits, others = _groups(shares, evidence)
    greatest = max(sum(own.values()), sum(waits.values()), *others.values())
    if shares.get("compute", 0.0) > 1 - IDLE_RATIO or greatest < min(
        IDLE_RATIO, shares.get("compute", 0.0)
    ):
        return "compute", False
    if sum(own.values()) > max(sum(waits.values()), *others.values(), 0.0):
        return max(own, key=lambda cause: own[cause]), True
    if max(others.values(), default=0.0) > sum(waits.values()):
        return max(others, key=lambda cause: others[cause]), False
    made = sum(waits.get(cause, 0.0) for cause in making)
    is_named = evidence.workers_are_busy and (
        made > waits.get("loader", 0.0) or evidence.a_stage_takes_most
    )
    if making and (made >= 0.5 * sum(waits.values()) or is_named):
        if evidence.most_work_is_unnamed:
            return "loader", False
        return max(making, key=lambda cause: making[cause]), False
    if evidence.workers_are_busy:  # a batch that arrives late was made late
        waits = {cause: share for cause, share in waits.items() if cause != "delivery"}
    return max(waits, key=lambda cause: waits[cause]), False


def _of_own(answer: Verdict, evidence: Evidence, shares: dict[str, float]) -> Verdict:
    """What is said where the training process itself reads and decodes."""
    bound = answer.bound_by or ""
    facts: Facts = {
        "own": bound,
        "share": evidence.own[bound],
        "emulated": evidence.run.is_emulated,
    }
    facts |= evidence.largest_part(bound) | _next(evidence, shares, bound)
    if evidence.is_by_threads(bound):
        waits = evidence.waiting_line if facts.get("next") == "host" else None
        if waits:
            facts |= {"wait_line": line_text(waits), "wait_share": waits.share or 0.0}
        answer = answer.said("own_threads", **facts)
    else:
        is_derived = evidence.charged[bound].basis == "derived"
        answer = answer.said("own", derived=is_derived, **facts)
    return _with_startup(answer, evidence)


def _said(answer: Verdict, evidence: Evidence, shares: dict[str, float]) -> Verdict:
    bound, emulated = answer.bound_by or "", evidence.run.is_emulated
    if bound == "straggler":  # all of it, whatever made the ranks late
        shares = {cause: entry.share or 0.0 for cause, entry in evidence.charged.items()}
    facts: Facts = {
        "cause": bound,
        "share": shares.get(bound),
        "emulated": emulated,
        "on_cpu": evidence.run.config.device == "cpu" and not emulated,
    }
    if "compute" not in shares:
        return answer.said("without_compute", **facts, **evidence.largest_part(bound))
    if bound == "compute":
        return _computing(answer.said("compute", **facts, **_next(evidence, shares)), evidence)
    facts |= {"compute": shares["compute"], "idle": 1 - shares["compute"]}
    facts |= evidence.largest_part(bound)
    is_of_workers = bound in evidence.making_ns and not evidence.is_work_of_others(bound)
    if is_of_workers or (bound == "loader" and evidence.most_work_is_unnamed):
        facts |= _of_loader(evidence) | _of_stragglers(evidence, LEAVES) | _larger(shares, bound)
        facts |= {"alone": _is_alone(evidence), "stages": _stages(evidence)}
        waited = sum(share for cause, share in shares.items() if cause in LEAVES)
        return _with_store(
            _with_startup(answer.said("batches", waits=waited, **facts), evidence), evidence
        )
    facts |= _of_loader(evidence) if bound in LEAVES else {}
    facts |= _of_stragglers(evidence, (bound,)) | _meaning(evidence, bound)
    facts |= _next(evidence, shares, bound)
    return _with_store(_with_startup(answer.said("cause", **facts), evidence), evidence)


def _with_store(answer: Verdict, evidence: Evidence) -> Verdict:
    """The answer, with what bounds the requests to a server that explain it."""
    store = main_store(evidence, answer.bound_by or "")
    return answer.said("store", **store_facts(store)) if store and store.bound else answer


def _computing(answer: Verdict, evidence: Evidence) -> Verdict:
    """What besides the model computed, or kept it from computing."""
    if line := evidence.computing_line:
        facts: Facts = {"line": line_text(line), "line_share": line.share or 0.0}
        return answer.said("computing_line", library=line.library, **facts)
    if (waited := _waits_for_cores(evidence)) is not None:
        return answer.said("no_cores", waited=waited, makers=bool(evidence.work_ns))
    return answer


def _meaning(evidence: Evidence, bound: str) -> Facts:
    """What the cause is called, as facts; `meaning` is one of the catalogue's."""
    detail = evidence.largest_detail(bound)
    if bound == "h2d" and detail:
        to_host = evidence.copies_to_host
        per_step = evidence.copied_per_step.get("d2h" if to_host else "h2d") or None
        meaning = "copies_to_host" if to_host else "copies_to_device"
        pageable = detail.code in PAGEABLE
        return {"meaning": meaning, "per_step_bytes": per_step, "pageable": pageable}
    if bound == "host":
        place = {"place": evidence.place_of_host}
        if waits := evidence.waiting_line:
            return place | {"meaning": "host_waits", "library": waits.library}
        if evidence.waits_for_processes:
            return place | {"meaning": "host_processes"}
        return place | {"meaning": "launching" if evidence.launching else bound}
    found = bound
    if bound == "validation" and evidence.evaluates_by_mode:
        found = "validation_by_mode"
    elif bound == "straggler" and evidence.run.config.parallel == "pipeline":
        found = "bubbles"
    elif bound == "straggler" and evidence.waits_for_messages:
        found = "messages"
    elif bound == "loader" and evidence.run.capture.imported_from is not None:
        found = "unseen_batches"
    elif bound == "storage" and detail and detail.code is PartCode.PEER:
        found = "peer"
    return {"meaning": found}


def _waits_for_cores(evidence: Evidence) -> float | None:
    """Share of the time in which ranks could run that they waited for a core, where they compute on
    the CPU.
    """
    if evidence.run.config.device != "cpu" or evidence.run.is_emulated or evidence.cpu is None:
        return None
    waited = evidence.cpu.rank_run_delay_ratio or 0.0
    if not evidence.work_ns:
        return waited if waited >= LEAST_DELAY_RATIO and not evidence.cpu.limits else None
    return waited if waited >= _LEAST_DELAY else None


def _next(evidence: Evidence, shares: dict[str, float], bound: str = "compute") -> Facts:
    """The largest cause besides compute and the bound, if one is worth a word, and how much of it
    made a rank late that others waited for.
    """
    if larger := _larger(shares, bound):
        return {"waits": sum(share for cause, share in shares.items() if cause in LEAVES), **larger}
    rest = {
        cause: share
        for cause, share in shares.items()
        if cause not in ("compute", bound) and share >= 0.001
    }
    after = max(rest, key=lambda cause: rest[cause], default=None)
    if after is None:
        return {}
    late = 0.0 if bound == "straggler" else evidence.straggler_wait.get(after, 0.0)
    late_share = late if late >= _LEAST_PRINTED else None
    share = evidence.charged[after].share if after == "straggler" else rest[after]
    return {"next": after, "next_share": share, "next_late_share": late_share}


def _larger(shares: dict[str, float], bound: str) -> Facts:
    """Of a bound that is a cause of waiting for batches: another cause, larger than any of these,
    though less than all of them.
    """
    others = {
        cause: share
        for cause, share in shares.items()
        if cause != "compute" and cause not in LEAVES
    }
    most = max(others, key=lambda cause: others[cause], default=None)
    waits = [share for cause, share in shares.items() if cause in LEAVES]
    if bound not in LEAVES or most is None or others[most] <= max(waits):
        return {}
    return {"larger": most, "larger_share": others[most]}


def _is_alone(evidence: Evidence) -> bool:
    """Whether ranks make their batches themselves."""
    return (
        evidence.run.config.workers == 0
        and evidence.ceilings is not None
        and evidence.ceilings.is_serial
    )


def _stages(evidence: Evidence) -> dict[str, float]:
    """The stages of making a batch, the longest first, as shares of the time that all of them took,
    as in the table of causes.
    """
    total_ns = sum(evidence.making_ns.values())
    reported = {
        cause: entry.workers_share
        for cause, entry in evidence.charged.items()
        if entry.workers_share is not None
    }
    found = {
        cause: reported.get(cause, took_ns / total_ns)
        for cause, took_ns in evidence.making_ns.items()
    }
    if evidence.most_work_is_unnamed:
        found["loader"] = reported["loader"]
    ordered = sorted(found, key=lambda cause: -found[cause])
    return {cause: found[cause] for cause in ordered if found[cause] >= _LEAST_OF_STAGE}


def _of_stragglers(evidence: Evidence, causes: Collection[str]) -> Facts:
    share = sum(evidence.straggler_wait.get(cause, 0.0) for cause in causes)
    late = late_ranks(evidence.steps.straggler_wait_s)
    is_one = late and late[0].waited_s >= MOSTLY_ONE * sum(each.waited_s for each in late)
    facts: Facts = {"late_share": share, "late_rank": late[0].rank if is_one else None}
    return facts if share >= _LEAST_LATE else {}


def _of_loader(evidence: Evidence) -> Facts:
    """Of several loaders that the loop takes batches from, the one that most of the waiting was
    for.
    """
    training = [loader for loader in evidence.loaders if loader.purpose == "train"]
    waited_s = sum(loader.waited_s for loader in training)
    if len(training) < 2 or training[0].waited_s < _LEAST_OF_LOADER * waited_s:
        return {}
    ratio = training[0].waited_s / waited_s if waited_s else 0.0
    return {"loader": training[0].name, "loader_ratio": ratio}


def _with_startup(answer: Verdict, evidence: Evidence) -> Verdict:
    ratio, warmup = evidence.warmup_ratio.get(answer.bound_by or "", 0.0), evidence.steps.warmup
    is_of_workers = answer.bound_by == "loader" and evidence.most_work_is_unnamed
    if ratio < 0.5 or not warmup or is_of_workers:
        return answer
    return answer.said("startup", ratio=ratio, warmup=warmup)
