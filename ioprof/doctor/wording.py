"""What the checks found: as a table with a closing sentence for people, as JSON for programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from rich.table import Table
from rich.text import Text

from ioprof.doctor.finding import STATES, Finding

SCHEMA: Final = "ioprof.doctor/1"


def findings_json(findings: Sequence[Finding], host: str) -> str:
    """All findings of a host as one JSON object."""
    rows = [asdict(finding) for finding in findings]
    return json.dumps({"schema": SCHEMA, "host": host, "findings": rows}, indent=1)


def findings_table(findings: Sequence[Finding]) -> Table:
    """A row for each finding that is ok: what, what was seen, and what follows."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        if not finding.to_type:
            table.add_row(
                Text(finding.name, style="green"), Text(f"{finding.seen}: {finding.means}")
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
