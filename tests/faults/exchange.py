"""Exchange by NCCL, as its profiler plugin records it without CUPTI: the calls of NCCL are made by
the program."""

from faults.case import Case

_NEEDS = ("ioprof._nccl_profiler",)  # not built without a C compiler

CASES = (
    Case(
        name="a rank that is 50 ms late at each all-reduce, by Python",
        program="nccl_job.py",
        arguments=("{data}/calls.so", 6, 25, 50, "compute"),
        make=("build_nccl_calls.py",),
        environment=(("IOPROF_NCCL", "on"),),
        needs=_NEEDS,
        bound_by="host",
        says=("rank 1, which the others waited for",),
        names=("rank 1: host", "50 by NCCL's profiler interface 6: 50 timed by the GPU's timer"),
        most_unexplained=1.0,  # the delay is Python that no span covers, which is the fault
    ),
    Case(
        name="all-reduces that take half of each step, of equal ranks",
        program="nccl_job.py",
        arguments=("{data}/calls.so", 4, 25, 0, "compute"),
        make=("build_nccl_calls.py",),
        environment=(("IOPROF_NCCL", "on"),),
        needs=_NEEDS,
        bound_by="exchange",
        names=("50 by NCCL's profiler interface 4",),
    ),
)
