"""What was found besides the verdict, by codes: ways of reading, what storage is bound by, what the
time of a cause includes. See `filling` for what a template is.
"""

from typing import Final

from ioprof.format.run_record import Reason

_OPENED: Final = "{files:,} files were opened {opens:,} times"
SEEN: Final = {
    "small reads": "{reads:,} reads moved {each_bytes:,.0f} bytes each and took {took_s:,.2f} s",
    "searching": (
        f"{_OPENED}, and each time read in {{pieces:,.0f}} pieces, which took {{took_s:,.2f}} s"
    ),
    "reopening": f"{_OPENED}, which took {{took_s:,.2f}} s",
    "page at a time": "{faults:,} page faults waited for storage and fetched one page each",
    "readahead of a map": (
        "{random_ratio:.0%} of {faults:,} page faults were at random places, and each fetched"
        " {each_bytes:kB}"
    ),
    "readahead of ranges": (
        "{fetched_bytes:MB0} were fetched during calls that asked for {asked_bytes:MB0}"
    ),
    "amplified": (
        "{ratio:,.1f} × the bytes wanted came from storage: {fetched_bytes:MB0} of mapped files,"
        " and [{epochs:,} × the whole files|the samples] are {wanted_bytes:MB0}"
    ),
    "readahead ended": (
        "{processes:,} processes switched readahead of the map off while they ran, the first"
        " [{since_s:if}{since_s:,.1f} s after the first step began|at the start]: the data no"
        " longer fits in the memory that the job leaves"
    ),
}
"""Costly ways of reading, by the code of a pattern."""
REMEDIES: Final = {
    "small reads": (
        "read whole records at once, or through a buffer of 1 MB (open(..., buffering=1 << 20))"
    ),
    "searching": (
        "keep where each record of a file begins (an index), and open each file once per worker"
    ),
    "reopening": "open each file once per worker and keep it open",
    "page at a time": (
        "read the mapped file by read() or pread(), or tell the kernel what comes next (madvise,"
        " MADV_WILLNEED)"
    ),
    "readahead of a map": (
        "if samples are smaller than that, switch readahead off for the map (madvise,"
        " MADV_RANDOM), or use pread()"
    ),
    "readahead of ranges": (
        "read ranges at random places without readahead (os.posix_fadvise, POSIX_FADV_RANDOM), or"
        " neighbours together"
    ),
    "amplified": (
        "switch readahead off for the map (--lmdb-readahead off; madvise, MADV_RANDOM), or read by"
        " pread() (--lmdb-read pread)"
    ),
    "readahead ended": "give the job more memory, or --lmdb-readahead off from the start",
}
"""What to change, by the same."""

_TOOK: Final = "half of the reads took {low_s:milliseconds} to {high_s:ms} each"
BOUNDS: Final = {
    "storage_idle": "reads were in progress in {busy_ratio:.0%} of the time only",
    "equal_times": f"{_TOOK}, of {{low_bytes:thousands}} to {{high_bytes:kB}}",
    "equal_reads": f"{_TOOK}, all of about {{each_bytes:kB}}: both a latency and a rate do that",
    "unclear_times": (
        "the times of reads differ, and how many there are per second does not show why"
    ),
    "reads_by_size": (
        "reads per second change with the power {power:.1f} ± {error:.1f} of bytes per read (-1: a"
        " shared rate, 0: a latency)[{is_unclear:if}, which is near the middle]"
    ),
}
"""What the reads of a run show of what bounds its storage."""

CAUSES: Final = {
    Reason.WITHOUT_LOCK_WAITS: (
        "without {seconds:.3f} s of waiting for the interpreter lock meanwhile, which are in host"
    ),
    Reason.INCLUDES_THREADS_BY_TIME: (
        "{seconds:.3f} s is what [{by_tasks:if}tasks of Ray Data|threads of the training process]"
        " did meanwhile: derived from the times"
    ),
    Reason.THREADS_MAY_BE_AWAITED: (
        "in {seconds:.3f} s of it threads of the training process read or decoded; whether the rank"
        " waited for them is not known"
    ),
    Reason.INCLUDES_UNKNOWN_SOURCES: (
        "includes reads of unknown origin, {ratio:.1%} of the read time: file system and counters"
        " do not say whether memory served them"
    ),
    Reason.INCLUDES_UNMEASURED: "includes {causes:join}, which could not be measured",
    Reason.INCLUDES_PAGEABLE_COPIES: (
        "{ratio:.0%} of the bytes came from pageable memory, and such copies cannot overlap with"
        " compute"
    ),
}
"""What the time of a cause includes that its name does not say, where that has numbers; else see
`Reason.text`."""
