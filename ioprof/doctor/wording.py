"""What the checks found: as a table with a closing sentence for people, as JSON for programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from ioprof.doctor.finding import STATES, Finding

SCHEMA: Final = "ioprof.doctor/1"
_STYLES: Final = {"ok": "green", "limited": "yellow", "missing": "red"}


def findings_json(findings: Sequence[Finding], host: str) -> str:
    """All findings of a host as one JSON object."""
    rows = [asdict(finding) for finding in findings]
    return json.dumps({"schema": SCHEMA, "host": host, "findings": rows}, indent=1)


def findings_table(findings: Sequence[Finding]) -> Table:
    """A row for each finding: what, its state, and what was seen."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("what")
    table.add_column("state")
    table.add_column("seen here", overflow="fold")
    for finding in findings:
        # What has something to type is explained below the table.
        seen = finding.seen if finding.to_type else f"{finding.seen}: {finding.means}"
        table.add_row(
            Text(finding.name), Text(finding.state, style=_STYLES[finding.state]), Text(seen)
        )
    return table


def closing(findings: Sequence[Finding]) -> str:
    """One sentence: how much can be seen, and what cannot."""
    names = {
        state: [finding.name for finding in findings if finding.state == state] for state in STATES
    }
    if len(names["ok"]) == len(findings):
        return f"All {len(findings)} things that ioprof looks at can be seen here."
    rest = "; ".join(f"{state}: {', '.join(names[state])}" for state in STATES[1:] if names[state])
    return (
        f"{len(names['ok'])} of {len(findings)} things that ioprof looks at can be seen in full"
        f" here; {rest}."
    )
