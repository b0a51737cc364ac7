"""What a job needs, in words and tables."""

from collections.abc import Callable, Iterator

from rich.table import Table

from ioprof.model.simulator.sizing import Need, Size
from ioprof.report.terminal import plain_table
from ioprof.report.texts.simulation import estimate_text
from ioprof.report.texts.units import amount, count, duration, percent, rate


def size_lines(found: Size) -> Iterator[str]:
    """One sentence per line."""
    yield (
        f"Derived: {found.job}, {count(found.ranks)} ranks compute"
        f" {estimate_text(found.samples_per_s, rate)} samples/s if none ever waits; an epoch takes"
        f" {estimate_text(found.epoch_s, duration)}."
    )
    yield f"The rate: {found.job_source} ({found.job_basis})."
    if found.epochs > 1:
        yield f"{count(found.epochs)} epochs: {estimate_text(found.total_s, duration)}."
    if found.energy_kwh:
        yield f"Energy: {estimate_text(found.energy_kwh, rate)} kWh."
    if found.price:
        yield f"Price: {estimate_text(found.price, rate)}."
    for each in found.next_devices:
        yield (
            f"On {each.device} ({each.basis} rate): {rate(each.samples_per_s)} samples/s need"
            f" {amount(each.bytes_per_s)}/s."
        )
    if found.assumed:
        yield f"Assumed, without a source: {', '.join(found.assumed)}."


def needs_rows(found: Size) -> list[tuple[str, ...]]:
    """What is needed; a column for each layout."""
    rows: dict[str, Callable[[Need], str]] = {
        "data": lambda each: amount(each.dataset_bytes),
        "bytes/s": lambda each: estimate_text(each.bytes_per_s, amount),
        "reads/s": lambda each: estimate_text(each.reads_per_s, count),
        "files/s": lambda each: estimate_text(each.opens_per_s, count),
        "cores": lambda each: estimate_text(each.cores, count),
        "memory for all data": lambda each: amount(each.memory_bytes),
        "batches made ahead": lambda each: amount(each.batches_bytes),
    }
    if any(each.staging_s is not None for each in found.needs):
        rows["staging"] = lambda each: duration(each.staging_s)
        rows["pays from epoch"] = lambda each: (
            "never" if each.staging_pays_from_epoch is None else count(each.staging_pays_from_epoch)
        )
    return [(name, *map(cell, found.needs)) for name, cell in rows.items()]


def use_rows(found: Size) -> list[tuple[str, ...]]:
    """Use of the accelerators by what storage delivers; it bends at what the layout needs."""
    rows = [
        (f"{amount(storage)}/s", *(percent(each.use[place][1]) for each in found.needs))
        for place, (storage, _) in enumerate(found.needs[0].use)
    ]
    bends = [f"bends at {amount(each.bends_at_bytes_per_s)}/s" for each in found.needs]
    return [*rows, ("", *bends)]


def size_tables(found: Size) -> dict[str, list[tuple[str, ...]]]:
    """Both, by their first heading; the others are the layouts."""
    return {"needs": needs_rows(found), "storage delivers": use_rows(found)}


def terminal_table(heading: str, found: Size, rows: list[tuple[str, ...]]) -> Table:
    """One of them."""
    return plain_table((heading, *(need.layout for need in found.needs)), rows)
