"""Whether a job's memory, including its page cache, can be limited here (man cgroups)."""

import os
from pathlib import Path

from ioprof.doctor.finding import Finding, Surroundings, content, missing, ok


def memory_limit(surroundings: Surroundings) -> Finding:
    """Whether a job's memory can be limited."""
    name = "memory limit"
    version, folder = memory_group(
        content(surroundings.proc / "self/mountinfo") or "",
        content(surroundings.proc / "self/cgroup") or "",
    )
    means = "a job can be run with little page cache, as on a busy node, to measure its reads then"
    controllers = (content(folder / "cgroup.controllers") or "").split() if folder else []
    if folder and os.access(folder, os.W_OK) and (version == "v1" or "memory" in controllers):
        return ok(name, f"cgroup {version}: {folder} can be written", means)
    runtime = surroundings.environment.get("XDG_RUNTIME_DIR")
    if runtime and (Path(runtime) / "systemd/private").exists():
        return ok(
            name, f"cgroup {version}; systemd-run --user --scope -p MemoryMax=8G COMMAND", means
        )
    seen = f"cgroup {version or 'not mounted'}: " + (
        f"{folder} cannot be written" if folder else "no memory controller"
    )
    without = (
        "a job's page cache cannot be limited: if the dataset fits into memory, only its first"
        " epoch reads from storage"
    )
    return missing(
        name,
        seen,
        without,
        "ask the scheduler (sbatch --mem=8G), or as root: systemd-run --scope -p MemoryMax=8G"
        " COMMAND",
    )


def memory_group(mountinfo: str, groups: str) -> tuple[str, Path | None]:
    """Version of the hierarchy with the memory controller ("v1", "v2", ""), and this process's
    folder in it.
    """
    mounts = [
        (line.split(), line.partition(" - ")[2].split())
        for line in mountinfo.splitlines()
        if " - cgroup" in line
    ]
    paths = {
        controllers: path
        for _, controllers, path in (
            line.split(":", 2) for line in groups.splitlines() if line.count(":") > 1
        )
    }
    for fields, rest in mounts:
        if rest[0] == "cgroup" and "memory" in rest[-1].split(","):
            own = next(
                (path for controllers, path in paths.items() if "memory" in controllers.split(",")),
                "/",
            )
            return "v1", _below(Path(fields[4]), own)
    for fields, rest in mounts:
        if rest[0] == "cgroup2":
            return "v2", _below(Path(fields[4]), paths.get("", "/"))
    return "", None


def _below(mount: Path, group: str) -> Path:
    """In a container the path that the kernel reports may be outside of the mounted part: then the
    mount point is the group.
    """
    folder = mount / group.lstrip("/")
    return folder if folder.is_dir() else mount
