"""What a prediction assumes, by code; see `filling` for what a template is."""

from typing import Final

ASSUMPTIONS: Final = {
    "like": (
        "batches cost what the {batches} batches of {run} cost, which had {workers} workers per"
        " rank[, in proportion to the batch size ({batch_size} for {other_size})]"
    ),
    "device": (
        "[emulated: {device} computes {samples_per_s:,.0f} samples/s ({basis}: {source}), copies"
        " {copied_bytes_per_s:GB1}/s|copies take as long as they did]"
    ),
    "storage_rate": "all readers share {bytes_per_s:MB}/s, as they did in this run",
    "storage_alone": (
        "there was one reader at a time in this run; the waits of more readers are assumed to"
        " overlap"
    ),
    "storage_latency": "waits for storage overlap, as they did in this run",
    "cpu_not_sampled": (
        "CPU time was not sampled for long: each process is assumed to have a core whenever it"
        " needs one"
    ),
    "others": (
        "{threads:.1f} threads of other programs compete for the cores, as they did while the run"
        " was recorded"
    ),
    "no_start": "this run started no workers, so the time to start them is not included",
    "collate_by_loop": (
        "batches are collated in half of the time, since workers also make shared memory for them;"
        " the range goes from no time to all of it"
    ),
    "batch": (
        "computing, copying and loading take time in proportion to the batch size; exchange, the"
        " optimizer and the loop's own Python do not; what else computing takes for a batch of any"
        " size is not known, so smaller batches may take longer"
    ),
    "free_memory": "reads from the page cache cost nothing: this run had too few of them to know",
    "cold_like": (
        "batches that came from the page cache would take as long as those of this run that came"
        " from storage"
    ),
    "no_exchange": (
        "the exchange of gradients costs nothing: one rank does not show it, so the rate is an"
        " upper bound"
    ),
    "ring": (
        "the exchange of gradients takes time in proportion to (ranks - 1) / ranks, as in a ring"
    ),
    "recordings": "the recordings are of one job, though their commands differ",
}
