"""What to change where the training process itself reads and decodes, in its main thread or in
others.
"""

from pathlib import PurePosixPath
from typing import Final

from ioprof.analysis.answer.evidence import LEAST_NAMED_RATIO, Evidence
from ioprof.analysis.answer.finding import Found, finding, of_line
from ioprof.format.run_record import CauseDetail, Facts, PartCode

_DECODERS: Final = {
    "tokens": ("tokenizers.", "transformers."),
    "packed": ("zlib.", "gzip.", "bz2", "lzma.", "compression.", "zstandard.", "lz4."),
    "tables": (
        "numpy.",
        "h5py.",
        "zarr.",
        "pyarrow.",
        "pandas.",
        "polars.",
        "safetensors.",
        "torch.",
    ),
    "recordings": (
        "cv2.VideoCapture",
        "av.",
        "torchcodec.",
        "torchvision.io.video",
        "soundfile.",
        "torchaudio.",
    ),
}
"""What is decoded, by the first letters of the decoder's name; a name that is not here is of an
image."""
_READS: Final = ("storage", "page_cache")
_LEAST_IDLE_CORES: Final = 0.5
"""Cores that were idle on average, from which on more threads are advised."""


def own_advice(evidence: Evidence, bound: str) -> Found:
    """What to change where the training process itself reads and decodes."""
    if evidence.is_by_threads(bound):
        yield from _of_threads(evidence, bound)
        return
    detail = evidence.largest_detail(bound) if bound in _READS else None
    facts: Facts = {"own": bound, "step_s": evidence.seconds_per_step(bound)}
    facts |= {"file": detail.name} if detail else {}
    if detail and ".so" in PurePosixPath(detail.subject).name:
        yield finding("copy_environment", **facts)
        return
    if detail and detail.code is PartCode.PEER:
        yield finding("receive_ahead", **facts)
        return
    if bound == "storage":
        yield finding("copy_or_cache", on_node=is_on_node(evidence), **facts)
    code = "read_in_workers" if bound in _READS else "work_in_workers"
    yield finding(code, has_loader=evidence.has_loader, **facts)


def _of_threads(evidence: Evidence, bound: str) -> Found:
    """What to change where threads of the training process read and decode, and its loop waits for
    them.
    """
    detail, line = evidence.largest_detail(bound, LEAST_NAMED_RATIO), evidence.largest_line(bound)
    is_read = bound in _READS
    facts: Facts = {"own": bound, "threads": True, "step_s": evidence.seconds_per_step(bound)}
    named = facts | ({"file": detail.name} if detail and is_read else {})
    if is_read and detail and detail.code is PartCode.PEER:
        yield finding("receive_more", **named)
        return
    if bound == "storage":
        yield finding("copy_or_cache", on_node=is_on_node(evidence), **named)
    decoder = decoder_kind(detail) if bound == "decode" else None
    facts |= {"decoder": decoder, "images": bound == "decode" and not decoder}
    code = "read_less_each" if is_read else "less_each"
    if line:
        yield of_line(evidence, code, bound, line, **facts)
    else:
        yield finding(code, **facts)
    cpu = evidence.cpu
    idle = (cpu.idle_ratio or 0.0) * (cpu.cores or 0) if cpu and not cpu.limits else 0.0
    if bound == "storage" or idle >= _LEAST_IDLE_CORES:
        cores = None if bound == "storage" else idle
        holds = evidence.lock_holder is not None
        yield finding("divide", idle_cores=cores, processes=holds, **facts)


def is_on_node(evidence: Evidence) -> bool:
    """Whether all storage of the job is of its node already."""
    kinds = {place.kind for place in evidence.run.storage if place.kind}
    return bool(evidence.run.storage) and kinds <= {"local", "memory"}


def decoder_kind(detail: CauseDetail | None) -> str | None:
    """What this decoder decodes; None: images, or not known."""
    kinds = (
        kind for kind, names in _DECODERS.items() if detail and detail.subject.startswith(names)
    )
    return next(kinds, None)
