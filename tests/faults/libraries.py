"""Data libraries of others: jobs whose data is on a slow disk."""

from faults.case import Case


def _slow_disk(
    library: str, is_mapped: bool = False, advises: str = "storage", like: str = ""
) -> Case:
    """Of data that is mapped, waits for pages that the kernel reads ahead are not all seen as
    faults: no verdict is checked."""
    return Case(
        name=f"{library} on a slow disk",
        program=f"train_with_{library}.py",
        arguments=("train", "{data}", 1, 18),
        prepares=True,
        disk_bytes_per_s=2 << 20,
        bound_by=None if is_mapped else "storage",
        says=() if is_mapped else ("storage",),
        advises=advises,
        needs=(library,),
        like=like,
    )


CASES = (
    Case(
        name="Ray Data with a transform of 60 ms",
        program="train_with_ray.py",
        arguments=("train", "{data}", 1, 18, 60),
        prepares=True,
        bound_by="transform",
        says=("transform",),  # the first advice may be to start Ray in less time
        needs=("ray",),
        unsettled=(
            "16 to 20 % of the time has no name on a slow machine, where 10 may; not found why"
        ),
        most_unexplained=0.1,  # its tasks are tied by time, and start in the first step
    ),
    _slow_disk("webdataset", advises="local copy of the shards (cache_dir="),
    Case(
        name="webdataset through cat on a slow disk",
        program="train_with_webdataset.py",
        arguments=("train", "{data}", 2, 12, 0, "pipe"),
        prepares=True,
        disk_bytes_per_s=2 << 20,
        bound_by="storage",
        says=("storage", ".tar"),
        never_says=("pipe from",),
        advises="local copy of the shards (cache_dir=",
        needs=("webdataset",),
    ),
    Case(
        name=(
            "webdataset that shuffles after it decodes, with workers that are made anew in each"
            " epoch"
        ),
        program="train_with_webdataset.py",
        arguments=("train", "{data}", 2, 90, 10, "late"),
        prepares=True,
        bound_by="transform",
        advises="Throw fewer samples away: shuffle and select before samples are decoded",
        names=("samples that were taken out of shards 360 were in batches",),
        needs=("webdataset",),
    ),
    _slow_disk("datasets", is_mapped=True, advises="", like="webdataset on a slow disk"),
    _slow_disk("litdata", is_mapped=True, advises="", like="webdataset on a slow disk"),
    _slow_disk("streaming", like="webdataset on a slow disk"),
    _slow_disk("tfrecord", like="webdataset on a slow disk"),
)
