"""Summaries of schema 1 as those of schema 2: their eleven causes as the fifteen of today."""

from collections.abc import Mapping
from typing import Any, Final

from ioprof.format.run_record.reasons import Reason
from ioprof.format.schema import SUMMARY_SCHEMA

_JOINT: Final = "communication"
"""The cause of schema 1 that was `exchange` and `straggler` together."""
_ADDED: Final = ("validation", "checkpoint", "gc")
_UNKNOWN: Final = {"seconds": None, "share": None, "basis": "unknown"}


def of_second_schema(value: dict[str, Any]) -> dict[str, Any]:
    """The JSON object of a summary, whose schema may be 1, as one of schema 2; what is not as
    expected stays as it is.
    """
    if value.get("schema") == SUMMARY_SCHEMA:
        return value
    steps, verdict = value.get("steps"), value.get("verdict")
    upgraded = {**value, "schema": SUMMARY_SCHEMA}
    if isinstance(steps, Mapping):
        upgraded["steps"] = _steps(dict(steps))
        if isinstance(verdict, Mapping) and verdict.get("bound_by") == _JOINT:
            causes = [
                entry
                for entry in upgraded["steps"].get("causes") or ()
                if isinstance(entry, Mapping)
            ]
            seconds = {entry.get("cause"): entry.get("seconds") or 0.0 for entry in causes}
            larger = max(("exchange", "straggler"), key=lambda cause: seconds.get(cause, 0.0))
            upgraded["verdict"] = {**verdict, "bound_by": larger}
    return upgraded


def _steps(value: dict[str, Any]) -> dict[str, Any]:
    """The object `steps` with the causes of schema 2.

    How long ranks waited for stragglers is in `behind_peers`, summed over the ranks. So
    `communication` can be divided for all ranks together, but not for one. Where there is no
    `behind_peers`, all of it is `exchange`, with a reason. Causes that schema 1 did not have are
    null: their time is in other causes.
    """
    causes = value.get("causes")
    if not isinstance(causes, list) or not any(
        isinstance(entry, Mapping) and entry.get("cause") == _JOINT for entry in causes
    ):
        return value
    waited_s = _waited_s(value.get("behind_peers"))
    upgraded: list[Any] = []
    for entry in causes:
        if not isinstance(entry, Mapping):
            upgraded.append(entry)
        elif entry.get("cause") == _JOINT:
            upgraded += _divided(dict(entry), waited_s)
        elif entry.get("cause") == "host":
            upgraded += [*(_not_distinguished(cause) for cause in _ADDED), entry]
        else:
            upgraded.append(entry)
    ranks = value.get("per_rank")
    rows = [_of_rank(row, waited_s) for row in ranks] if isinstance(ranks, list) else ranks
    return {**value, "causes": upgraded, "per_rank": rows}


def _waited_s(behind_peers: Any) -> float | None:
    """Seconds that ranks waited for stragglers; null: not recorded."""
    if not isinstance(behind_peers, Mapping):
        return None
    found = (
        seconds
        for causes in behind_peers.values()
        if isinstance(causes, Mapping)
        for seconds in causes.values()
    )
    return sum(seconds for seconds in found if isinstance(seconds, int | float))


def _divided(entry: dict[str, Any], waited_s: float | None) -> list[dict[str, Any]]:
    exchange, straggler = {**entry, "cause": "exchange"}, {**entry, "cause": "straggler"}
    seconds, share = entry.get("seconds"), entry.get("share")
    if not isinstance(seconds, int | float) or not isinstance(share, int | float):
        return [exchange, straggler]
    if waited_s is None:
        reason = {
            "reason": Reason.INCLUDES_STRAGGLER_WAIT.text,
            "reason_code": Reason.INCLUDES_STRAGGLER_WAIT,
        }
        return [{**exchange, **reason}, _not_distinguished("straggler")]
    waited_s = min(waited_s, seconds)
    no_reason = {"reason": None, "reason_code": None}
    waited_share = share * waited_s / seconds if seconds else 0.0
    return [
        {**exchange, **no_reason, "seconds": seconds - waited_s, "share": share - waited_share},
        {**straggler, **no_reason, "seconds": waited_s, "share": waited_share},
    ]


def _not_distinguished(cause: str) -> dict[str, Any]:
    reason = Reason.NOT_DISTINGUISHED
    return {"cause": cause, **_UNKNOWN, "reason": reason.text, "reason_code": reason}


def _of_rank(row: Any, waited_s: float | None) -> Any:
    """One rank's row. Where ranks waited, the row keeps `communication_s`, and its two parts are
    null.
    """
    if not isinstance(row, Mapping) or f"{_JOINT}_s" not in row or waited_s:
        return row
    rest = {key: seconds for key, seconds in row.items() if key != f"{_JOINT}_s"}
    return {
        **rest,
        "exchange_s": row[f"{_JOINT}_s"],
        "straggler_s": None if waited_s is None else 0.0,
    }
