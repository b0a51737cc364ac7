"""Emulated devices: jobs of `ioprof run` whose copies take as long as what they are copied for."""

from typing import Final

from faults.case import Case

_NULL: Final = ("--loader", "null", "--no-stacks", "--batch-size")

CASES = (
    Case(
        name="copies from pageable memory",
        options=(
            *_NULL,
            1024,
            "--device",
            "emulated:v100",
            "--model",
            "alexnet",
            "--copy",
            "pageable",
            "--steps",
            30,
        ),
        bound_by="h2d",
        says=("emulated",),
        advises="page-locked memory",
        names=("pageable memory",),
        most_unexplained=0.2,  # as below
    ),
    Case(
        name="a link that takes longer for a batch than the device computes",
        options=(
            *_NULL,
            1024,
            "--device",
            "emulated:v100",
            "--model",
            "small_cnn",
            "--copy",
            "overlapped",
            "--steps",
            200,
        ),
        bound_by="h2d",
        says=("emulated",),
        advises="fewer bytes",
        # the threads that stand for the device need CPU time, which is `host` to the rank
        most_unexplained=0.4,
    ),
    Case(
        name="a device that computes all of the time",
        options=(
            *_NULL,
            1024,
            "--device",
            "emulated:v100",
            "--model",
            "alexnet",
            "--copy",
            "overlapped",
            "--steps",
            80,
        ),
        bound_by="compute",
        says=("emulated",),
        like="a model on the CPU that takes nearly all of the time",
        advises="faster model",
    ),
)
