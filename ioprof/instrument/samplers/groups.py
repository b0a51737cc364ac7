"""In how many groups, each of which the scheduler gives the same CPU time, the job and other
programs are.

The kernel does not share cores among threads alone. Where more threads want to run than there are
cores, it first shares them among groups: the control groups that have the CPU controller, and,
outside of those, the sessions of terminals (`sched_autogroup_enabled`, man sched). A job that has
more threads gets no more of what other groups want.
"""

import os
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from ioprof.instrument.samplers.readings import Subject, read_record

_NONE: Final = "/"
"""The group of all that are in no other one; also the control group of a container, as it sees it
itself."""


class SchedulingGroups:
    """Adds up the CPU time of groups of processes, from the first call of `read` on."""

    def __init__(self, proc: str = "/proc", sys: str = "/sys") -> None:
        self._proc, self._sys = proc, sys
        self._has_sessions = self._text(f"{proc}/sys/kernel/sched_autogroup_enabled").strip() == "1"
        self._group_of: dict[Subject, str] = {}
        self._known_s: dict[Subject, float] | None = None
        """What each process had used at the last call; None: there was none."""
        self._own_s, self._others_s = defaultdict[str, float](float), defaultdict[str, float](float)

    def read(
        self, own: Mapping[Subject, float], others: Mapping[Subject, float]
    ) -> dict[str, float]:
        """The current values, by the CPU seconds of the job's processes and of all others so far;
        none in the first call.
        """
        known, every = self._known_s, {**others, **own}
        self._known_s = every
        self._group_of = {each: name for each, name in self._group_of.items() if each in every}
        if known is None:
            return {}
        for used, of_group in ((own, self._own_s), (others, self._others_s)):
            for subject, seconds in used.items():
                if (more_s := seconds - known.get(subject, 0.0)) > 0:
                    of_group[self._group(subject)] += more_s
        elsewhere = {name: s for name, s in self._others_s.items() if name not in self._own_s}
        return {
            "groups.own": _effective_number(self._own_s),
            "groups.others": _effective_number(elsewhere),
            "groups.others_beside": round(
                sum(self._others_s.values()) - sum(elsewhere.values()), 6
            ),
        }

    def _group(self, subject: Subject) -> str:
        if subject not in self._group_of:
            self._group_of[subject] = self._find(subject[0] or 0)
        return self._group_of[subject]

    def _find(self, pid: int) -> str:
        for line in self._text(f"{self._proc}/{pid}/cgroup").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if "cpu" in controllers.split(",") and path != _NONE:
                return path
            # of version 2: the innermost one to which the controller was given; in a container the
            # root may be one
            while not controllers and path:
                if os.path.exists(f"{self._sys}/fs/cgroup{path.rstrip('/')}/cpu.weight"):
                    return path
                path = "" if path == "/" else os.path.dirname(path)
        if not self._has_sessions:
            return _NONE
        return self._text(f"{self._proc}/{pid}/autogroup").partition(" ")[0] or _NONE

    @staticmethod
    def _text(path: str) -> str:
        try:
            return read_record(path).decode(errors="replace")
        except OSError:
            return ""


def _effective_number(used_s: Mapping[str, float]) -> float:
    """How many groups of the same use there would be: one that hardly ran hardly counts (the
    inverse of Simpson's index).
    """
    squares = sum(seconds**2 for seconds in used_s.values())
    return round(sum(used_s.values()) ** 2 / squares, 3) if squares else 0.0
