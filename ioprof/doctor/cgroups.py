"""Whether a job's memory, including its page cache, can be limited here (man cgroups)."""

import os
from pathlib import Path

from ioprof.doctor.finding import Finding, Surroundings, missing, ok
from ioprof.storage.limits import group_parents


def memory_limit(surroundings: Surroundings) -> Finding:
    """Whether a job's memory can be limited."""
    name = "memory limit"
    groups = list(group_parents(str(surroundings.proc)))
    means = "a job can be run with little page cache, as on a busy node, to measure its reads then"
    for version, folder in groups:
        if os.access(folder, os.W_OK):
            return ok(name, f"cgroup {version}: {folder} can be written", means)
    runtime = surroundings.environment.get("XDG_RUNTIME_DIR")
    if runtime and (Path(runtime) / "systemd/private").exists():
        return ok(name, "systemd-run --user --scope -p MemoryMax=8G COMMAND", means)
    seen = ", ".join(f"cgroup {version}: {folder} cannot be written" for version, folder in groups)
    without = (
        "a job's page cache cannot be limited: if the dataset fits into memory, only its first"
        " epoch reads from storage"
    )
    return missing(
        name,
        seen or "no cgroup with a memory controller",
        without,
        "ask the scheduler (sbatch --mem=8G), or as root: systemd-run --scope -p MemoryMax=8G"
        " COMMAND",
    )
