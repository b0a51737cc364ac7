"""Mapped data: jobs that wait for storage in page faults."""

from faults.case import Case
from ioprof.format.run_record import Doubt

# Minor faults are recorded within a budget, and in some runs half of the bytes that they waited for
# are not timed; then the verdict is another one, and says that it is unsure for that reason.

CASES = (
    Case(
        name="a memmap at random on a slow disk",
        program="train_on_mapped.py",
        make=("make_ways_of_reading.py", "memmap_at_random"),
        arguments=("{data}", "memmap_at_random", 1, 40),
        disk_bytes_per_s=4 << 20,
        bound_by="storage",
        says=("storage",),
        unsure=Doubt.UNTIMED,
    ),
    Case(
        name="parts of a memmap that a thread of the worker sends, on a slow disk",
        program="train_on_mapped.py",
        make=("make_ways_of_reading.py", "memmap_at_random"),
        arguments=("{data}", "memmap_at_random", 1, 30, "passed_on"),
        disk_bytes_per_s=4 << 20,
        bound_by="storage",
        says=("storage",),
        unsure=Doubt.UNTIMED,
        like="a memmap at random on a slow disk",
    ),
    Case(
        name="pages of a memmap that are copied under the interpreter lock, on a slow disk",
        program="train_on_mapped.py",
        make=("make_ways_of_reading.py", "memmap_at_random"),
        arguments=("{data}", "memmap_at_random", 2, 24, "copied"),
        disk_bytes_per_s=6 << 20,
        bound_by="storage",
        says=("storage",),
        unsure=Doubt.UNTIMED,
    ),
    Case(
        name="a shared library on a slow disk",
        program="train_on_mapped.py",
        make=("make_ways_of_reading.py", "shared_library"),
        arguments=("{data}", "shared_library", 1, 40),
        disk_bytes_per_s=4 << 20,
        bound_by="storage",
        says=("storage",),
        unsure=Doubt.UNTIMED,
        like="a memmap at random on a slow disk",
    ),
)
