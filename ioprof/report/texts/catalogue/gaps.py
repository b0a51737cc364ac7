"""What the recording cannot show, by the codes of `Capture.gaps`; see `filling` for what a template
is.
"""

from typing import Final

from ioprof.analysis.capture import IMPORT_DAMAGE
from ioprof.analysis.reads.storage_bytes import URING
from ioprof.format.schema import PYTHON_PROGRAM

PROCESS: Final = "[rank {rank}|a process of no rank][ worker {worker}] (pid {pid})"
_NAMES: Final = "{names:join}[{others:if} and others]"
_NOT_FOLLOWED: Final = "used io_uring in a way that cannot be followed"
_NOTED: Final = {
    URING: (
        "[{by_uring:if}read {by_uring:MB} by io_uring in a way that cannot be followed (SQPOLL, or"
        " calls that are built into the program): the kernel counted them, and they were not timed"
        f"|{{is_uncounted:if}}{_NOT_FOLLOWED}, and how much it read is not known"
        f"|{_NOT_FOLLOWED}, and read little that was not seen]"
    ),
    "libaio": "used libaio, whose reads are not seen",
    "raw system calls": "read by raw system calls, which are counted but not timed",
    "exec without capture": (
        "started a program with an environment without ioprof; its reads are not seen"
    ),
    "stdio of unknown size": "read through stdio in a way that hides how many bytes were read",
    PYTHON_PROGRAM: (
        "ran Python without the hooks of ioprof, so that only its reads are seen; start its script"
        " with python instead of a frozen program, or call ioprof.instrument.autostart.start()"
        " where it begins"
    ),
}
"""What the capture library noticed, by `schema.NOTED`."""
_TO_TYPE: Final = {
    "setuid program": (
        "no library is loaded into it; start ioprof with the rights that the job needs, without"
        " {program}"
    ),
    "32-bit program": "the capture library is a 64-bit one; use a 64-bit build of {program}",
    "static program": "its own reads are not seen; those of dynamic programs that it starts are",
    "launcher": (
        "its command may run where it is not recorded; type: {program} ... ioprof record -- COMMAND"
    ),
}
"""What to do about programs that cannot be recorded, by `schema.NOT_FOLLOWED`."""

GAPS: Final = {
    "failed": "[rank {rank}|the job] failed: {what}",
    "unclosed": (
        f"{PROCESS} ended without closing its record; nothing of it [after {{last_s:.1f}} s|was"
        " recorded]"
    ),
    "missing_ranks": (
        "nothing was recorded of rank{number:s} {ranks:ranges}: no number here includes"
        " {number:them}"
    ),
    "lost": (
        f"{PROCESS} had no room for {{spans:,}} span{{spans:s}}; steps from then on are left out"
    ),
    "damaged": "capture file {file}: {what}",
    IMPORT_DAMAGE: "{file}: {what}",
    "run_record": "run.json: {what}; it counts as not recorded",
    "kept": "{what}",
    "reads_not_captured": (
        "reads were not captured[ ({why})]: time spent on storage cannot be separated from other"
        " time of the loader"
    ),
    "unknown_sources": (
        "{ratio:.1%} of the read time has no known source: file system and counters do not say"
        " whether memory served it"
    ),
    "reads_of_some": (
        "only reads made by {by} are recorded[{is_not_built:if} (the capture library is not"
        " built)]: a read or a page fault elsewhere in the job would not be seen"
    ),
    "hook": (
        "a hook could not be installed, and what it observes was not recorded: {unobserved}"
        "[ ({why})]"
    ),
    "faults": (
        "page faults were not recorded, so reads of memory-mapped files count as loader time: {why}"
    ),
    "unwatched_faults": (
        "how long {unwatched:,} of {faults:,} page faults took is not known, and counts as 0: they"
        " came after seconds without a page fault"
    ),
    "stacks": "stacks were not sampled, so no line of code is named: {why}",
    "hidden_processes": (
        f"nothing was recorded of {{number}} process{{number:es}} ({_NAMES}), for which the folder"
        " of the recording was not there, as in a container with a /tmp of its own; type:"
        " TMPDIR=FOLDER ioprof record ..., with a folder that has the same path in there and can be"
        " written"
    ),
    "uncaptured_processes": (
        f"{{number}} process{{number:es}} without the capture library ({_NAMES}): statically"
        " linked, setuid, or started with an empty environment; their reads are not seen"
    ),
    **{word: f"{PROCESS}: {text}" for word, text in _NOTED.items()},
    **{kind: f"{{program}} was started, a {kind}: {text}" for kind, text in _TO_TYPE.items()},
    # ------------------------------------------------------------------------ of GPUs
    "gpu_steps": (
        "the GPU was recorded in {seen:,} of {steps:,} steps, and only these are charged to causes"
    ),
    "gpu_slowdown": (
        "steps took {ratio:.0%} longer (median) while the GPU was recorded; compare rates of runs"
        " without --gpu-window"
    ),
    "gpu_left_out": "{records:,} records of the GPU had impossible times and were left out",
    "gpu_launches": (
        "{launches:,} launches of GPU kernels left no record: lost by Kineto, or captured into a"
        " CUDA graph"
    ),
    "gpu_note": "GPU of process {pid}: {what}[{is_often:if} ({times} times)]",
    # ------------------------------------------------------------------------ of NCCL
    "collectives_of_gpu": "collectives were recorded only where the GPU was: {why:reason}",
    "no_collectives_of_some": "some processes recorded no collectives: {why:reason}",
    "unended_collectives": (
        "[rank {rank} (pid {pid})|process {pid}] had not left {operations:,}"
        f" operation{{operations:s}} of NCCL when it ended: {_NAMES}"
    ),
    "untimed_collectives": (
        "{number:,} operations of NCCL have no times: no kernel and no transfer of them was"
        " reported ([{is_old:if}NCCL before 2.26 reports only transfers by the network|they did"
        " not begin before the recording ended])"
    ),
    "collectives_by_copy_engines": (
        "{number:,} operations of NCCL were made by copy engines, whose times NCCL does not report"
    ),
    "captured_collectives": (
        "{number:,} operations of NCCL were launched by CUDA graphs: their step is that in which"
        " they ran"
    ),
    "untracked_collectives": (
        "{number:,} operations or records of NCCL found no room, and are not here"
    ),
}
OTHER_GAP: Final = f"{PROCESS}: {{code}}"
"""What a later version of the capture library noticed."""
