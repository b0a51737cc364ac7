"""Storage: jobs whose reads are slow."""

from faults.case import Case

CASES = (
    Case(
        name="slow disk under a DataLoader",
        program="train_on_files.py",
        arguments=("{data}", 1, 18),
        disk_bytes_per_s=2 << 20,
        bound_by="storage",
        says=("storage",),
        advises="storage",
    ),
)
