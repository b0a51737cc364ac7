"""What a verdict says, by the codes of its sentences. See `filling` for what a template is."""

from typing import Final

_DEVICES: Final = "[{emulated:if}emulated ]accelerators"
_IDLE: Final = (
    "[{on_cpu:if}The model computed (on the CPU) for {compute:.1%} of the steps' time|The"
    f" {_DEVICES} were idle for {{idle:.1%}} of the steps' time]"
)
_LINE: Final = (
    "[, {line_share:.1%}[{of_workers:if} of the workers' time at {line}|"
    " at {line}[ ({function_share:.1%} of the steps' time in all of {function})]]]"
)
_WHERE: Final = (
    "[, {part_share:.1%} on {part:path}[ ({part_line})]|[, {launch_share:.1%} to waiting for kernel"
    f" launches ({{kernels:,.0f}} kernels a step, median {{kernel_s:µs}})]{_LINE}[{{others:each}}]]"
)
_LARGER: Final = "[, {larger:words} alone took {larger_share:.1%}]"
_NEXT: Final = (
    "[; all waits for batches took {waits:.1%}, {larger:words} alone took {larger_share:.1%}|; next"
    " comes {next:words} with {next_share:.1%}[, {next_late_share:.1%} of it on ranks that others"
    " waited for]]"
)
_OF_LOADER: Final = "[, {loader_ratio:.0%} of the waiting for the loader of {loader}]"
_LATE: Final = (
    "[ ({late_share:.1%} of the time on [rank {late_rank}, which the others waited for|a slower"
    " rank"
    " that the others waited for])]"
)
_OTHERS: Final = "[ (other programs took {others:.0%} of the host's CPU time)]"
_CORES: Final = "{allowed} core{allowed:s}"
_AFFINITY: Final = (
    "may use {affine_cores} of {cores} cores (CPU affinity[ {cpus}]), and waited for a core"
)
_CAN_RUN: Final = f"of the time in which they could run{_OTHERS}."
UNTIMED: Final = (
    "[{uring_bytes:MB0} came by io_uring[ and {mapped_bytes:MB0} came by mapped files]|"
    "{mapped_bytes:MB0} came by mapped files] and were not timed"
)

_WAITING: Final = "{waiting:.0%} of their time was waiting"
_STORE_RATE: Final = "{bytes_per_s:MB}/s per connection"
_STORE: Final = (
    "[{stalls:if}<a> few of {requests:,} requests to {store} stalled, and took most of the time; of"
    " half of the requests the first byte came after {first_s:ms} or less|{client:if}<the> client"
    " is the bound of {requests:,} requests to {store}: only {waiting:.0%} of their time was"
    " waiting for the server; the rest is what the client does with what it has received"
    f" ({_STORE_RATE})|{{small:if}}{{requests:,}} requests to {{store}} fetched small objects,"
    f" {{each_bytes:kB}} each: the first byte came after {{first_s:ms}} (p50), and {_WAITING}|<the>"
    " server is the bound of {requests:,} requests to {store}[ ({each_bytes:kB} each)]:"
    " [{latency:if}the first byte came after {first_s:ms} (p50)|it sent"
    f" {_STORE_RATE}], and {_WAITING} for it]"
)
STORE: Final = _STORE.replace("<a>", "a").replace("<the>", "the")
"""What bounds the requests to a server, within a sentence."""

SENTENCES: Final = {
    "store": _STORE.replace("<a>", "A").replace("<the>", "The") + ".",
    "missing_ranks": (
        "{share:.1%} of the [{emulated:if}emulated ]steps' time went to exchanges with ranks of"
        " which nothing was recorded. What those did meanwhile is not known, so it is not known"
        " what the job waited for."
    ),
    "filled": (
        "In the first epoch workers filled {name}, which they keep: {first_s:ms1} a step instead of"
        " {later_s:ms1}. Of the later ones:"
    ),
    "no_device_times": (
        "What the devices did in the steps is not in the files, so it is not known what the job"
        " waited for."
    ),
    "no_step": (
        "No step was completed, so it is not known what the job waited for[{disk_was_full:if}: the"
        " disk for capture files was full before|: {unobserved} was not"
        " observed[ ({why})]|{without_hooks:if}: Python ran without the hooks of ioprof]."
    ),
    "own_threads": (
        "The training loop waited for {share:.1%} of the [{emulated:if}emulated ]steps' time while"
        " threads of its process were busy with {own:own} (derived from the"
        f" times){_WHERE}{_NEXT}[, of which {{wait_share:.1%}} at {{wait_line}}, where the loop"
        " waits"
        " too]."
    ),
    "own": (
        "The training process itself spent {share:.1%} of the [{emulated:if}emulated ]steps' time"
        " on"
        f" {{own:own}}{_WHERE}[{{derived:if}} (derived from the times of its threads)]{_NEXT}."
    ),
    "without_compute": (
        f"Of the steps' time {{share:.1%}} went to {{cause:meanings}}{_WHERE}; what the"
        f" [{{on_cpu:if}}CPU|{_DEVICES}] computed was not recorded, so how much of it was hidden is"
        " not known."
    ),
    "compute": (
        f"The [{{on_cpu:if}}model computed (on the CPU)|{_DEVICES} computed] for {{share:.1%}} of"
        " the"
        f" steps' time{_NEXT}."
    ),
    "computing_line": (
        "So did {line}, which calls {library}, for {line_share:.1%}; it counts as host."
    ),
    "no_cores": (
        "The ranks waited for a core for {waited:.0%} of the time in which they could"
        " run[{makers:if}, and the workers compute too: what makes batches cheaper, or more cores,"
        " may make|: more cores, or fewer programs beside the job, may make] this job faster."
    ),
    "device_waits": (
        "A device twice as fast would bring next to nothing: what else the job does takes as long"
        " beside it."
    ),
    "batches": (
        f"{_IDLE}, and {{waits:.1%}} went to waiting for"
        f" batches{_WHERE}{_OF_LOADER}{_LATE}{_LARGER};"
        " [{alone:if}the ranks, which make their batches themselves,|the workers] spent"
        " {stages:stages}."
    ),
    "cause": (
        f"{_IDLE}, and {{share:.1%}} went to <meaning>{_WHERE}[, most of it"
        f" {{place:places}}]{_OF_LOADER}{_LATE}{_NEXT}."
    ),
    "startup": (
        "Of that, {ratio:.0%} was in the first {warmup} steps (start-up): a longer run has a"
        " smaller"
        " share."
    ),
    "first_epoch": (
        "The first epoch waited {seconds:,.2f} s for storage: {first_s:ms1} a step instead of"
        " {later_s:ms1}. Of the later ones:"
    ),
    "loading_rank": "Rank {rank} loads the batches of all ranks.",
    "phase": (
        "The job spent {took_s:,.1f} of its {wall_s:,.1f} s ({share:.0%}) {phase:phases}[,"
        " {line_s:,.1f} s at {line} (by samples of stacks)| ({modules:modules})|"
        " ({file:path})]."
    ),
    "untimed": f"{UNTIMED}.",
    # ------------------------------------------------------------------------ of CPU time
    "quota": (
        "The job's cgroup has a quota of {quota_cores:.4g} core{quota_cores:s} and was throttled in"
        " {throttled:.0%} of its periods."
    ),
    "threads": (
        "[{pool_threads} threads of {pool} in a process|Up to {most_threads} threads in a process]"
        f" on {_CORES}: {{runnable:.0f}} could run on average, and waited for a core"
        f" {{delay:.0%}} of"
        f" that time{_OTHERS}."
    ),
    "processes": (
        "The ranks waited for a core {rank_delay:.0%} of the time in which they could run: {beside}"
        " other process{beside:es} of the job[ ({programs})], [{several:if}each ]with"
        " {beside_threads:.1f} threads"
        f" that could run on average, used {{beside_cores:.1f}} of {_CORES}{_OTHERS}."
    ),
    "worker_affinity": (
        f"Workers[ ({{num_workers}} each)] {_AFFINITY} {{worker_delay:.0%}} {_CAN_RUN}"
    ),
    "rank_affinity": f"Ranks {_AFFINITY} {{rank_delay:.0%}} {_CAN_RUN}",
    "cores": (
        "{option.more_workers:capital} would only share the cores: all {cores} were busy for"
        f" {{busy:.0%}} of the time{_OTHERS}, and workers waited for a core {{worker_delay:.0%}} of"
        " the time in which they could run."
    ),
    # ------------------------------------------------------------------------ of doubts
    "doubt_close": (
        "Unsure, because [{second:alternatives}|{second:words}] took nearly as much[ ({share:.1%})|"
        " as {than:words}]."
    ),
    "doubt_cores": (
        "Unsure, because workers mostly waited for a core, and batches are on their way until those"
        " that send and receive them run."
    ),
    "doubt_threads": (
        "Unsure, because threads of the process read or decoded meanwhile, and whether it waited"
        " for"
        " them is not known."
    ),
    "doubt_unnamed": (
        "Unsure, because the recording does not show what [{waits:if}those did that it waited"
        " for|most of this time was spent on]."
    ),
    "doubt_untimed": (
        f"Unsure, because {UNTIMED}: waits for them are in [{{on_device:if}}loader or host|loader,"
        " host or compute]."
    ),
}

MEANINGS: Final = {
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
"""What the time of a cause went to."""
_COPIED: Final = "[ ({per_step_bytes:MB} a step[{pageable:if}, <way> pageable memory])]"
OTHER_MEANINGS: Final = {
    "copies_to_host": ("copies from the device to the host" + _COPIED.replace("<way>", "to")),
    "copies_to_device": ("copies from the host to the device" + _COPIED.replace("<way>", "from")),
    "host_waits": (
        "the ranks' own Python and to waiting for other threads or processes, which were not"
        " followed ({library})"
    ),
    "host_processes": "the ranks' own Python, which mostly waits for other processes of the job",
    "launching": "the ranks' own Python",
    "validation_by_mode": (
        "forward passes in evaluation mode without gradients (a validation, if not the making of"
        " training data)"
    ),
    "bubbles": "bubbles of the pipeline, in which a stage waits for another",
    "messages": "waiting for messages of ranks that were computing",
    "unseen_batches": "waiting for batches, of whose making the trace shows nothing",
    "peer": "waiting for data that another program sends",
}
"""The same where more is known; templates."""

FORMS: Final = {
    "meanings": MEANINGS,
    "places": {
        "before_forward": "before the forward pass",
        "after_compute": "after the computation",
    },
    "alternatives": {
        "batches": "waiting for batches",
        "own": "the training process's own reads and decoding",
    },
    "phases": {
        "start-up": "before its first step, in its own code (imports not counted)",
        "imports": "on importing modules",
        "interpreter": "on starting the Python interpreter",
        "launch": "before its ranks were started",
        "process group": "on waiting for all processes (init_process_group)",
        "first batch": "on waiting for the first batch",
        "loading weights": "on loading weights",
        "restart": (
            "on starting its ranks again, from the last step of an attempt to the first of the next"
        ),
        "between": "between its steps",
        "end": "after its last step",
    },
}
"""Words for values of facts."""
STAGES: Final = {
    "page_cache": "page cache",
    "loader": "Python and waiting in the dataset",
}
