"""Interpreters of Python that this machine has."""

import re
import shutil
import subprocess
import sys
from pathlib import Path


def interpreters() -> dict[tuple[int, int], Path]:
    """Those on the PATH, and those installed next to the one that runs this, by version; its own is
    the first."""
    names = [shutil.which(f"python3.{minor}") for minor in range(6, 20)]
    siblings = sorted(Path(sys.base_prefix).parent.glob("*/bin/python3.*"))
    found = {(sys.version_info[0], sys.version_info[1]): Path(sys.executable)}
    for path in [*(Path(name) for name in names if name), *siblings]:
        version = re.fullmatch(r"python3\.(\d+)", path.name)
        if version and (3, int(version[1])) not in found and _runs(path):
            found[3, int(version[1])] = path
    return found


def _runs(python: Path) -> bool:
    """Whether this is an interpreter that starts, and not a link to one that is not installed."""
    return (
        subprocess.run([python, "-c", "import json"], capture_output=True, check=False).returncode
        == 0
    )
