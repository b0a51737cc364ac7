"""Whether a job's memory, and with it its share of the page cache, can be limited here (man cgroups)."""

import os
from pathlib import Path

from ioprof.doctor.finding import Finding, Surroundings, content, missing, ok


def memory_limit(surroundings: Surroundings) -> Finding:
    """Whether a job can be given less memory than the machine has."""
    name = "memory limit"
    version, folder = memory_group(
        content(surroundings.proc / "self/mountinfo") or "", content(surroundings.proc / "self/cgroup") or ""
    )
    means = "a job can be run with little page cache, as on a busy node, to see what its reads cost then"
    if folder and os.access(folder, os.W_OK) and _delegates_memory(version, folder):
        return ok(name, f"cgroup {version}: {folder} can be written", means)
    runtime = surroundings.environment.get("XDG_RUNTIME_DIR")
    if runtime and (Path(runtime) / "systemd/private").exists():
        return ok(name, f"cgroup {version}; systemd-run --user --scope -p MemoryMax=8G COMMAND", means)
    seen = f"cgroup {version or 'not mounted'}: " + (f"{folder} cannot be written" if folder else "no memory controller")
    without = "page cache cannot be limited for a job: runs whose dataset fits into memory show a cold cache only once"
    return missing(
        name, seen, without, "ask the scheduler (sbatch --mem=8G), or as root: systemd-run --scope -p MemoryMax=8G COMMAND"
    )


def memory_group(mountinfo: str, groups: str) -> tuple[str, Path | None]:
    """Version of the hierarchy that limits memory ("v1", "v2", ""), and this process's folder in it."""
    mounts = [(line.split(), line.partition(" - ")[2].split()) for line in mountinfo.splitlines() if " - cgroup" in line]
    paths = {
        controllers: path for _, controllers, path in (line.split(":", 2) for line in groups.splitlines() if line.count(":") > 1)
    }
    for fields, rest in mounts:
        if rest[0] == "cgroup" and "memory" in rest[-1].split(","):
            own = next((path for controllers, path in paths.items() if "memory" in controllers.split(",")), "/")
            return "v1", _below(Path(fields[4]), own)
    for fields, rest in mounts:
        if rest[0] == "cgroup2":
            return "v2", _below(Path(fields[4]), paths.get("", "/"))
    return "", None


def _below(mount: Path, group: str) -> Path:
    """In a container the path that the kernel names may lie outside of what is mounted: then the mount is the group."""
    folder = mount / group.lstrip("/")
    return folder if folder.is_dir() else mount


def _delegates_memory(version: str, folder: Path) -> bool:
    return version == "v1" or "memory" in (content(folder / "cgroup.controllers") or "").split()
