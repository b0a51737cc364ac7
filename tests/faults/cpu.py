"""CPU time: jobs whose ranks and workers do not get the cores that they could use, and jobs that
do."""

import os
from typing import Final

from faults.case import Case

_CORES: Final = os.cpu_count() or 1
_ALLOWED: Final = sorted(os.sched_getaffinity(0))
_FIRST: Final = _ALLOWED[0]
_TWO: Final = ("taskset", "-c", ",".join(map(str, _ALLOWED[:2])))
_ACCUSATIONS: Final = ("may use", "quota", "throttled", "could run on average")
"""Words of the sentences that name a lack of CPU time."""

CASES = (
    Case(
        name="job on one core (taskset)",
        program="train_with_threads.py",
        arguments=("{data}", 2, 3, "plain"),
        before=("taskset", "-c", str(_FIRST)),
        says=("Workers", f"may use 1 of {_CORES} cores (CPU affinity {_FIRST})"),
        advises="use more than 1 of",
        num_cores=2,
    ),
    Case(
        name="workers on one core (sched_setaffinity)",
        program="train_with_threads.py",
        arguments=("{data}", 2, 3, f"affinity={_FIRST}"),
        says=("Workers", f"may use 1 of {_CORES} cores (CPU affinity {_FIRST})"),
        advises="use more than 1 of",
        num_cores=2,
    ),
    Case(
        name="quota of half a core",
        program="train_with_threads.py",
        arguments=("{data}", 2, 3, "plain"),
        quota_cores=0.5,
        says=("The job's cgroup has a quota of 0.5 cores and was throttled",),
        advises="Raise the CPU quota",
    ),
    Case(
        name="64 threads of OpenCV",
        program="train_with_threads.py",
        arguments=("{data}", 2, 3, "opencv=64"),
        before=_TWO,
        says=("64 threads of OpenCV in a process on 2 cores",),
        advises="cv2.setNumThreads(0)",
        needs=("cv2",),
        num_cores=2,
    ),
    Case(
        name="64 threads of torch in each worker",
        program="train_with_threads.py",
        arguments=("{data}", 2, 3, "torch=64"),
        before=_TWO,
        says=("64 threads of torch in a process on 2 cores",),
        advises="torch.set_num_threads(1)",
        num_cores=2,
    ),
    Case(
        name="actors that play by the model beside the learner",
        program="train_from_actors.py",
        arguments=(150, "beside"),
        before=_TWO,
        says=("The ranks waited for a core", "2 other processes of the job"),
        advises="Leave cores for the ranks",
        num_cores=2,
    ),
    Case(
        name="a learner without its actors",
        program="train_from_actors.py",
        arguments=(300, "before"),
        before=_TWO,
        never_says=(*_ACCUSATIONS, "other processes of the job"),
        # seconds of a tiny model, of whose Python few samples of stacks are taken
        most_unexplained=0.15,
        num_cores=2,
    ),
    Case(
        name="healthy job on two cores",
        program="train_on_files.py",
        # so many that samples of stacks find the twentieth of the time that has no other name
        arguments=(
            "{data}",
            1,
            108,
        ),
        never_says=_ACCUSATIONS,
        num_cores=2,
    ),
    Case(
        name="decoding with an idle core",
        program="train_with_threads.py",
        arguments=("{data}", 0, 3, "plain"),
        never_says=_ACCUSATIONS,
        advises="Use num_workers=",
        num_cores=2,
    ),
)
