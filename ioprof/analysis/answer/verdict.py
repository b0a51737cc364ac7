"""The answer: what the job waited for most, in a word and a sentence, and what to change, each with
the number it is based on.
"""

from collections.abc import Collection
from typing import Final

from ioprof.analysis.answer.advice import advice_for
from ioprof.analysis.answer.details import FROM_PAGEABLE
from ioprof.analysis.answer.doubts import with_doubts
from ioprof.analysis.answer.evidence import IDLE_RATIO, MOSTLY_ONE, Evidence
from ioprof.analysis.answer.job_verdict import with_loading_rank
from ioprof.analysis.answer.own_advice import OWN_MEANING, PEERS
from ioprof.analysis.answer.queue_advice import deeper_queue
from ioprof.analysis.answer.store_advice import store_text
from ioprof.analysis.answer.use_advice import comes_first, keep_cache, use_advice
from ioprof.analysis.cpu.code_lines import line_text
from ioprof.analysis.cpu.cpu_time import LEAST_DELAY_RATIO
from ioprof.analysis.ranks.unrecorded import verdict_without
from ioprof.analysis.reads.lineage import LEAVES
from ioprof.format.run_record import Advice, NoGain, RunRecord, Verdict
from ioprof.format.schema import PYTHON_PROGRAM

_WITH_RANKS: Final = ("straggler", "exchange")
"""Causes that what other ranks do makes longer or shorter; they are advised on where they are the
bound."""
_MOST_OTHERS: Final = 2
"""Other causes than the bound that are advised on."""
_LEAST_DELAY: Final = 0.05
"""Part of the time in which a rank can run that it waits for a core, from which on what the workers
do costs the model time."""
_WHOLE: Final = ("storage", "decode", "validation", "checkpoint", "gc")
"""Causes of which all may be left out; of others a line or a setting is named."""
_LEAST_OF_CANDIDATE: Final = 0.02
"""Share of the steps' time, or of the workers', below which removing a cause brings nothing that is
worth a word."""
_LEAST_OF_LOADER: Final = 0.6
"""Part of the waiting for batches from which on one of several loaders is named for it."""


def verdict(evidence: Evidence) -> Verdict:
    """`bound_by`, and why. Numbers that depend on an emulated device are called emulated in the
    text.
    """
    shares = evidence.shares
    if not sum(shares.values()) and evidence.steps.count and evidence.run.capture.imported_from:
        return Verdict(
            None,
            "What the devices did in the steps is not in the files, so it is not known what the"
            " job waited for.",
        )
    if not sum(shares.values()):
        return Verdict(
            None,
            "No step was completed, so it is not known what the job waited"
            f" for{_unobserved(evidence.run)}.",
        )
    compared = _with_computing_line(shares, evidence)
    bound, is_own = _bound_by(compared, evidence)
    if evidence.missing and (found := verdict_without(evidence, bound, evidence.missing, shares)):
        return found
    text = _text_of_own(evidence, bound, shares) if is_own else _text(evidence, bound, shares)
    advice = advice_for(evidence, bound, is_own=is_own)
    if bound in LEAVES and not is_own:
        advice = [*deeper_queue(evidence), *advice]
    advice += [each for each in _of_others(evidence, compared, bound, is_own) if each not in advice]
    of_use = list(use_advice(evidence))
    advice = [*(each for each in of_use if comes_first(each, evidence)), *advice]
    advice = keep_cache(advice, evidence)
    told = {each.action for each in advice}
    possible = [*of_use, *_candidates(evidence, shares)]
    more = (each for each in possible if each.action not in told and each.no_gain is None)
    stages = evidence.own if is_own else evidence.work_ns
    found = Verdict(bound, text, tuple(advice), tuple(more))
    found = with_doubts(
        found, evidence, _alternatives(compared, evidence), stages if bound in stages else {}
    )
    return with_loading_rank(found, evidence)


def _of_others(
    evidence: Evidence, shares: dict[str, float], bound: str, is_own: bool
) -> list[Advice]:
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


def _candidates(evidence: Evidence, shares: dict[str, float]) -> list[Advice]:
    """Advice of every cause that takes some of the time, to be told if the replay finds a gain in
    it: what is waited for least may be what all else depends on.
    """
    found = dict[str, Advice]()
    for cause, share in shares.items():
        charged = evidence.charged.get(cause)
        worked = (charged.workers_share if charged else None) or 0.0
        if charged is None or cause in _WITH_RANKS or max(share, worked) < _LEAST_OF_CANDIDATE:
            continue
        is_own = evidence.own.get(cause, 0.0) > 0.5 * share
        for each in advice_for(evidence, cause, is_own=is_own):
            is_named = each.part is not None or each.change is not None or cause in _WHOLE
            if each.no_gain is None and is_named:
                found.setdefault(each.action, each)
    return list(found.values())


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
    """What `_bound_by` chooses from, where it is not compute: shares by what it is in words."""
    waits, others = _groups(shares, evidence)
    return {
        "waiting for batches": sum(waits.values()),
        "the training process's own reads and decoding": sum(evidence.own.values()),
        **{cause.replace("_", " "): share for cause, share in others.items()},
    }


def _unobserved(run: RunRecord) -> str:
    """Why perhaps no step was recorded, as the end of a sentence."""
    if sum(process.lost or 0 for process in run.processes):
        return ": the disk for capture files was full before"
    if run.capture.unobserved:
        hook = run.capture.unobserved[0]
        return f": {hook.unobserved} was not observed" + (f" ({hook.why})" if hook.why else "")
    without_hooks = any(
        PYTHON_PROGRAM in process.reads.noted for process in run.processes if process.reads
    )
    return ": Python ran without the hooks of ioprof" if without_hooks else ""


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


def _text_of_own(evidence: Evidence, bound: str, shares: dict[str, float]) -> str:
    """What is said where the training process itself reads and decodes."""
    share, emulated = evidence.own[bound], "emulated " if evidence.run.is_emulated else ""
    if evidence.is_by_threads(bound):
        waits = evidence.waiting_line if _largest_rest(shares, bound) == "host" else None
        too = (
            f", of which {waits.share or 0.0:.1%} at {line_text(waits)}, where the loop waits too"
            if waits
            else ""
        )
        return (
            f"The training loop waited for {share:.1%} of the"
            f" {emulated}steps' time while threads of "
            f"its process were busy with {OWN_MEANING[bound]} (derived from the"
            f" times){evidence.largest_part(bound)}"
            f"{_next(shares, bound)}{too}.{_startup(evidence, bound)}"
        )
    derived = (
        " (derived from the times of its threads)"
        if evidence.charged[bound].basis == "derived"
        else ""
    )
    return (
        f"The training process itself spent {share:.1%} of the"
        f" {emulated}steps' time on "
        f"{OWN_MEANING[bound]}{evidence.largest_part(bound)}{derived}{_next(shares, bound)}.{_startup(evidence, bound)}"  # noqa: E501
    )


def _text(evidence: Evidence, bound: str, shares: dict[str, float]) -> str:
    devices = f"{'emulated ' if evidence.run.is_emulated else ''}accelerators"
    idle = f"The {devices} were idle for {1 - shares.get('compute', 0.0):.1%} of the steps' time"
    if is_on_cpu := evidence.run.config.device == "cpu" and not evidence.run.is_emulated:
        devices, idle = (
            "CPU",
            (
                f"The model computed (on the CPU) for {shares.get('compute', 0.0):.1%} of the"
                " steps' time"
            ),
        )
    if "compute" not in shares:
        return (
            f"Of the steps' time {shares[bound]:.1%} went to"
            f" {_MEANING[bound]}{evidence.largest_part(bound)}; what the {devices} computed was not"
            " recorded, so how much of it was hidden is not known."
        )
    if bound == "compute":
        more = ""
        if line := evidence.computing_line:
            more = (
                f" So did {line_text(line)}, which calls {line.library}, for"
                f" {line.share or 0.0:.1%}; it counts as host."
            )
        elif (waited := _waits_for_cores(evidence)) is not None:
            helps = (
                ", and the workers compute too: what makes batches cheaper, or more cores, may make"
            )
            if not evidence.work_ns:
                helps = ": more cores, or fewer programs beside the job, may make"
            more = (
                f" The ranks waited for a core for {waited:.0%} of the time in which they could"
                f" run{helps} this job faster."
            )
        computed = "The model computed (on the CPU)" if is_on_cpu else f"The {devices} computed"
        text = f"{computed} for {shares['compute']:.1%} of the steps' time{_next(shares)}."
        return text + more
    is_of_workers = bound in evidence.making_ns and not evidence.is_work_of_others(bound)
    if is_of_workers or (bound == "loader" and evidence.most_work_is_unnamed):
        waited = sum(share for cause, share in shares.items() if cause in LEAVES)
        return (
            f"{idle}, and {waited:.1%} went to waiting for"
            f" batches{evidence.largest_part(bound)}{_of_loader(evidence)}{_of_stragglers(evidence, LEAVES)}{_larger(shares, bound)};"  # noqa: E501
            f" {_makers(evidence)} spent {_stages(evidence)}.{_startup(evidence, bound)}"
            f"{store_text(evidence, bound)}"
        )
    meaning, waits = _MEANING[bound], evidence.waiting_line if bound == "host" else None
    if bound == "validation" and evidence.evaluates_by_mode:
        meaning = (
            "forward passes in evaluation mode without gradients (a validation, if not the making"
            " of training data)"
        )
    if bound == "straggler" and evidence.run.config.parallel == "pipeline":
        meaning = "bubbles of the pipeline, in which a stage waits for another"
    elif bound == "straggler" and evidence.waits_for_messages:
        meaning = "waiting for messages of ranks that were computing"
    if bound == "h2d":
        meaning = _copies(evidence)
    if bound == "loader" and evidence.run.capture.imported_from is not None:
        meaning = "waiting for batches, of whose making the trace shows nothing"
    if (
        bound == "storage"
        and (detail := evidence.largest_detail("storage"))
        and detail.name.startswith(PEERS)
    ):
        meaning = "waiting for data that another program sends"
    if bound == "host" and evidence.launching:
        meaning = "the ranks' own Python"
    if waits:
        meaning = f"{_WAITING_HOST} ({waits.library})"
    where = (
        evidence.place_of_host
        if bound == "host"
        else _of_loader(evidence)
        if bound in LEAVES
        else ""
    )
    return (
        f"{idle}, and {shares[bound]:.1%} went to"
        f" {meaning}{evidence.largest_part(bound)}"
        f"{where}{_of_stragglers(evidence, (bound,))}{_next(shares, bound)}."
        f"{_startup(evidence, bound)}{store_text(evidence, bound)}"
    )


def _copies(evidence: Evidence) -> str:
    """What was copied, and how much of it in a step."""
    detail = evidence.largest_detail("h2d")
    if detail is None:
        return _MEANING["h2d"]
    kind, way = (
        ("d2h", "from the device to the host")
        if evidence.copies_to_host
        else ("h2d", "from the host to the device")
    )
    memory = (
        f", {'to' if kind == 'd2h' else 'from'} pageable memory"
        if detail.name.endswith(FROM_PAGEABLE)
        else ""
    )
    per_step = evidence.copied_per_step.get(kind)
    return (
        f"copies {way} ({per_step / 1e6:,.1f} MB a step{memory})" if per_step else f"copies {way}"
    )


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


def _next(shares: dict[str, float], bound: str = "compute") -> str:
    if larger := _larger(shares, bound):
        waited = sum(share for cause, share in shares.items() if cause in LEAVES)
        return f"; all waits for batches took {waited:.1%}{larger}"
    after = _largest_rest(shares, bound)
    return f"; next comes {after.replace('_', ' ')} with {shares[after]:.1%}" if after else ""


def _largest_rest(shares: dict[str, float], bound: str) -> str | None:
    """The largest cause besides compute and the bound; None: there is none that is worth a word."""
    rest = {
        cause: share
        for cause, share in shares.items()
        if cause not in ("compute", bound) and share >= 0.001
    }
    return max(rest, key=lambda cause: rest[cause], default=None)


def _larger(shares: dict[str, float], bound: str) -> str:
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
    is_larger = bound in LEAVES and most is not None and others[most] > max(waits)
    return (
        f", {most.replace('_', ' ')} alone took {others[most]:.1%}"
        if is_larger and most is not None
        else ""
    )


def _makers(evidence: Evidence) -> str:
    """Who makes the batches."""
    is_alone = (
        evidence.run.config.workers == 0
        and evidence.ceilings is not None
        and evidence.ceilings.is_serial
    )
    return "the ranks, which make their batches themselves," if is_alone else "the workers"


def _stages(evidence: Evidence) -> str:
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
    stages = sorted(
        (cause for cause in found if found[cause] >= 0.01), key=lambda cause: -found[cause]
    )
    return ", ".join(
        f"{found[cause]:.1%} {'of their work on' if place == 0 else 'on'}"
        f" {_STAGE_NAMES.get(cause, cause)}"
        for place, cause in enumerate(stages)
    )


def _of_stragglers(evidence: Evidence, causes: Collection[str]) -> str:
    share = sum(evidence.straggler_wait.get(cause, 0.0) for cause in causes)
    waited_s = evidence.waited_for_s
    slowest = next(iter(waited_s), None)
    is_one = slowest is not None and waited_s[slowest] >= MOSTLY_ONE * sum(waited_s.values())
    who = (
        f"rank {slowest}, which the others waited for"
        if is_one
        else "a slower rank that the others waited for"
    )
    return f" ({share:.1%} of the time on {who})" if share >= 0.01 else ""


def _of_loader(evidence: Evidence) -> str:
    """Of several loaders that the loop takes batches from, the one that most of the waiting was
    for.
    """
    training = [loader for loader in evidence.loaders if loader.purpose == "train"]
    waited_s = sum(loader.waited_s for loader in training)
    if len(training) < 2 or training[0].waited_s < _LEAST_OF_LOADER * waited_s:
        return ""
    ratio = training[0].waited_s / waited_s if waited_s else 0.0
    return f", {ratio:.0%} of the waiting for the loader of {training[0].name}"


def _startup(evidence: Evidence, bound: str) -> str:
    ratio = evidence.warmup_ratio.get(bound, 0.0)
    if (
        ratio < 0.5
        or not evidence.steps.warmup
        or (bound == "loader" and evidence.most_work_is_unnamed)
    ):
        return ""
    return (
        f" Of that, {ratio:.0%} was in the first {evidence.steps.warmup} steps (start-up): a longer"
        " run has a smaller share."
    )


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
    "host": "the ranks' own Python between waiting, copying and computing",
}
_WAITING_HOST: Final = (
    "the ranks' own Python and to waiting for other threads or processes, which were not followed"
)
_STAGE_NAMES: Final = {
    "page_cache": "page cache",
    "loader": "what no read, decode or transform covers",
}
