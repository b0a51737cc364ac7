"""What a job needs, in words and tables."""

from collections.abc import Callable, Iterator

from rich import box
from rich.table import Table

from ioprof.model.simulator.simulation import Estimate
from ioprof.model.simulator.sizing import Need, Size
from ioprof.report.texts.units import amount, count, duration, percent, rate


def size_lines(found: Size) -> Iterator[str]:
    """One sentence per line."""
    yield (
        f"Derived: {found.job}, {count(found.ranks)} ranks compute"
        f" {_range(found.samples_per_s, rate)} samples/s if none ever waits; an epoch takes"
        f" {_range(found.epoch_s, duration)}."
    )
    yield f"The rate: {found.job_source} ({found.job_basis})."
    if found.epochs > 1:
        yield f"{count(found.epochs)} epochs: {_range(found.total_s, duration)}."
    if found.energy_kwh:
        yield f"Energy: {_range(found.energy_kwh, rate)} kWh."
    if found.price:
        yield f"Price: {_range(found.price, rate)}."
    for each in found.next_devices:
        yield (
            f"On {each.device} ({each.basis} rate): {rate(each.samples_per_s)} samples/s need"
            f" {amount(each.bytes_per_s)}/s."
        )
    if found.assumed:
        yield f"Assumed, without a source: {', '.join(found.assumed)}."


def needs_table(found: Size) -> Table:
    """A column for each layout."""
    table = _table("needs", *(each.layout for each in found.needs))
    rows: dict[str, Callable[[Need], str]] = {
        "data": lambda each: amount(each.dataset_bytes),
        "bytes/s": lambda each: _range(each.bytes_per_s, amount),
        "reads/s": lambda each: _range(each.reads_per_s, count),
        "files/s": lambda each: _range(each.opens_per_s, count),
        "cores": lambda each: _range(each.cores, count),
        "memory for all data": lambda each: amount(each.memory_bytes),
        "batches made ahead": lambda each: amount(each.batches_bytes),
    }
    if any(each.staging_s is not None for each in found.needs):
        rows["staging"] = lambda each: duration(each.staging_s)
        rows["pays from epoch"] = lambda each: (
            "never" if each.staging_pays_from_epoch is None else count(each.staging_pays_from_epoch)
        )
    for name, cell in rows.items():
        table.add_row(name, *map(cell, found.needs))
    return table


def use_table(found: Size) -> Table:
    """Use of the accelerators by what storage delivers; it bends at what the layout needs."""
    table = _table("storage delivers", *(each.layout for each in found.needs))
    for place, (storage, _) in enumerate(found.needs[0].use):
        shares = [percent(each.use[place][1]) for each in found.needs]
        table.add_row(f"{amount(storage)}/s", *shares)
    bends = [f"bends at {amount(each.bends_at_bytes_per_s)}/s" for each in found.needs]
    table.add_row("", *bends)
    return table


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _range(found: Estimate, shown: Callable[[float], str]) -> str:
    if found.low == found.high:
        return shown(found.value)
    return f"{shown(found.value)} ({shown(found.low)} to {shown(found.high)})"
