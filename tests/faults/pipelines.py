"""Pipelines: jobs that are held up by how their input is set up, and jobs whose loop is not one
batch per optimizer step."""

from typing import Final

from faults.case import Case

_INPUT: Final = "train_with_input.py"
_FOLDERS: Final = "train_on_two_folders.py"
_WAYS: Final = "train_in_ways.py"
_TWO: Final = ("{python}", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

CASES = (
    Case(
        name="one worker that mostly waits, where more would help",
        program=_INPUT,
        arguments=("few_workers", 40, 1),
        bound_by="loader",
        says=("train_with_input.py",),
        advises="num_workers=",
    ),
    Case(
        name="a queue too short for rare slow batches",
        program=_INPUT,
        arguments=("small_prefetch", 84, 1),
        bound_by="loader",
        says=("train_with_input.py",),
        advises="prefetch_factor=",
    ),
    Case(
        name="tensors of 256 MB through the queue",
        program=_INPUT,
        arguments=("large_tensors", 24, 1),
        like="batches of 64 MB that are pickled into a pipe",
        bound_by="delivery",
        advises="Send less per batch",
    ),
    Case(
        name="a first epoch from storage, and later ones from memory",
        program=_FOLDERS,
        arguments=("cold_epoch", "{data}", "{fast}", 40, 1),
        disk_bytes_per_s=2 << 20,
        bound_by="decode",
        says=("first epoch", "storage"),
    ),
    Case(
        name="samples of many small reads",
        program=_FOLDERS,
        arguments=("small_reads", "{data}", "{fast}", 24, 1),
        read_ms=2,
        bound_by="storage",
        advises="larger pieces",
    ),
    Case(
        name="one slow file",
        program=_FOLDERS,
        arguments=("slow_file", "{data}", "{fast}", 40, 1),
        read_ms=20,
        bound_by="storage",
        says=(".JPEG",),
        advises=".JPEG",
        names=("slow files",),
    ),
    Case(
        name="four workers that share a slow disk",
        program=_FOLDERS,
        arguments=("cold_reads", "{data}", "{fast}", 60, 4),
        like="slow disk under a DataLoader",
        disk_bytes_per_s=3 << 20,
        bound_by="storage",
        advises="fewer bytes",
        names=("bound by throughput",),
    ),
    *(
        Case(
            name=name,
            program=_FOLDERS,
            arguments=(fault, "{data}", "{fast}", steps, 1),
            launcher=_TWO,
            read_ms=read_ms,
            bound_by=bound,
            says=("rank 1",),
            names=(f"rank 1: {cause}",),
            like="a rank whose data is on slow storage" if cause == "decode" else "",
        )
        for name, fault, steps, read_ms, bound, cause in (
            (
                "a rank whose data is on slow storage",
                "slow_rank_storage",
                24,
                20,
                "storage",
                "storage",
            ),
            (
                "a rank that decodes what others have decoded",
                "slow_rank_decode",
                24,
                0,
                "decode",
                "decode",
            ),
            ("a rank that computes more", "slow_rank_compute", 24, 0, "straggler", "compute"),
        )
    ),
    Case(
        name="two loaders, one of them slow",
        program=_WAYS,
        arguments=("two_loaders", 60, 1),
        bound_by="loader",
        says=("Labelled",),
        prints_rate=True,
    ),
    Case(
        name="gradients of four batches per step",
        program=_WAYS,
        arguments=("accumulate", 80, 1, 0.01),
        bound_by="loader",
        says=("train_in_ways.py",),
        prints_rate=True,
    ),
    Case(
        name="inference",
        program=_WAYS,
        arguments=("inference", 80, 1, 0.01),
        like="gradients of four batches per step",
        bound_by="loader",
        says=("train_in_ways.py",),
        prints_rate=True,
    ),
    Case(
        name="a model on the CPU that takes nearly all of the time",
        program="own_code.py",
        arguments=("compute", 50, 1),
        bound_by="compute",
        says=("(on the CPU)",),
        advises="faster model",
        never_says=("GPU", "accelerator"),
    ),
    Case(
        name="Python before the forward pass",
        program="own_code.py",
        arguments=("before", 80, 0),
        bound_by="host",
        says=("own_code.py", "before the forward pass"),
        advises="own_code.py",
    ),
)
