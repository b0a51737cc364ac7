"""Input: loaders with one slow part, and storage with latency."""

from typing import Final

from faults.case import Case

_PROGRAM: Final = "train_with_input.py"
_TWO: Final = ("{python}", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

CASES = (
    Case(
        name="a collate function of 40 ms",
        program=_PROGRAM,
        arguments=("collate", 60, 1),
        bound_by="collate",
        says=("train_with_input.py",),
        advises="collat",
        never_says=("GPU", "accelerator"),
    ),
    Case(
        name="one sample of 60 that takes 0.4 s",
        program=_PROGRAM,
        arguments=("slow_sample", 120, 1),
        bound_by="loader",
        says=("train_with_input.py",),
        names=("in a tenth of them",),
    ),
    Case(
        name="one worker of two that takes 20 times as long",
        program=_PROGRAM,
        arguments=("slow_worker", 60, 2),
        bound_by="loader",
        says=("train_with_input.py",),
        names=("imbalance of workers",),
    ),
    Case(
        name="shards of which one worker has nine of ten",
        program="own_tensors.py",
        arguments=("shards", 60),
        bound_by="loader",
        says=("own_tensors.py",),
        names=("imbalance of workers", "as much work"),
    ),
    Case(
        name="features that a manager of multiprocessing keeps",
        program="ask_manager.py",
        arguments=(400, 2),
        bound_by="loader",
        says=("ask_manager.py",),
        never_names=("num_workers=",),
        advises="Ask for less at",
        names=("in Features.__getitem__", "asks another process of the job"),
        prints_rate=True,
    ),
    Case(
        name="batches of 64 MB that are pickled into a pipe",
        program=_PROGRAM,
        arguments=("large_messages", 30, 1),
        bound_by="delivery",
    ),
    Case(
        name="crops of a memory map that are sent with all of it",
        program=_PROGRAM,
        arguments=("views", 60, 1),
        bound_by="delivery",
        advises="Send a copy of what a sample takes",
        names=("all of which a worker",),
    ),
    Case(
        name="storage with a latency of 20 ms",
        program="train_on_files.py",
        arguments=("{data}", 1, 36),
        read_ms=20,
        bound_by="storage",
        advises="Read more at a time",
        names=("bound by latency",),
    ),
    *(
        Case(
            name=name,
            program=_PROGRAM,
            arguments=(fault, 24, 1),
            launcher=_TWO,
            says=(f"rank {rank}",),
            names=(f"rank {rank}: loader",),
            most_unexplained=1.0,  # of that rank, whose lines of code are named
        )
        for fault, rank, name in (
            ("slow_rank", 1, "a rank whose samples take 20 ms longer"),
            (
                "slow_first_rank",
                0,
                "a first rank whose samples take 20 ms longer, and whose buffers others wait for",
            ),
        )
    ),
    Case(
        name=(
            "ranks that average their models every eight steps, one with samples that take 20 ms"
            " longer in the first two"
        ),
        program=_PROGRAM,
        arguments=("local_sgd", 48, 0),
        launcher=_TWO,
        bound_by="loader",
        says=("rank 1, which the others waited for",),
        names=("rank 1: loader",),
        most_unexplained=1.0,  # of that rank, whose lines of code are named
        num_cores=2,
    ),
)
