"""The simulator against published results, row by row: MLPerf Storage v1.0 and v3.0, MLPerf HPC.

    benchmarks/simulator.py --published FOLDER [--write]

FOLDER has mlperf_storage_v1.0.csv, mlperf_storage_v3.0.csv and mlperf_hpc.csv: one result per row,
medians of its runs. IOPROF_PUBLISHED names it as well. Without it nothing is compared. `--write`
stores the errors in `ioprof/model/simulator/validation.toml`, which each answer shows, and with why
each row that is missed is missed in `benchmarks/results/simulator.md`.

Rows with A100 calibrate, those with H100 validate; where a system has no A100, the smallest row of
each workload calibrates. What was calibrated stands in `ioprof/model/systems/mlperf-storage.toml`.
"""

import argparse
import csv
import os
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ioprof.model.simulator.jobs import described
from ioprof.model.simulator.simulation import (
    SHARED,
    STAGED,
    Setting,
    held,
    simulate,
    staging_s,
)
from ioprof.model.simulator.system import Numbers, System, load_system
from ioprof.model.simulator.validation import CALIBRATES, USE, VALIDATES, Comparison, Summed

SYSTEMS: Final = (
    ("AI400X2T", "ddn-ai400x2t"),
    ("4xNDR400_3xStorageNode_IntelHost", "iei-800g"),
    ("AS13000", "iei-400g"),
    ("E1000_6xSling", "hpe-e1000-slingshot"),
    ("E1000", "hpe-e1000"),
    ("C500", "hpe-c500"),
    ("1Client", "hammerspace-1"),
    ("5Client", "hammerspace-5"),
    ("JuiceFS", "juicefs"),
    ("6500", "micron-6500"),
    ("9400", "micron-9400"),
    ("9550", "micron-9550"),
    ("weka", "weka"),
)
"""Part of a row's name, and the table of its system; the first that fits."""
RESULTS: Final = Path(__file__).parent / "results" / "simulator.md"
STAGING, FIRST, LATER = "staging", "first epoch", "later epoch"
BOUNDS: Final = {
    USE: 0.02,
    "samples/s": 0.05,
    "accelerators held": 0.10,
    STAGING: 0.15,
    FIRST: 0.15,
    LATER: 0.15,
}
HPC_SYSTEMS: Final = (
    ("hpc_v0.7", "daint_gpu", "piz-daint-2020"),
    ("hpc_v1.0", "daint_gpu", "piz-daint-2021"),
    ("hpc_v1.0", "perlmutter", "perlmutter"),
    ("hpc_v1.0", "dgxa100", "dgx-a100"),
)
"""Of MLPerf HPC: round, part of a row's name, and the table of its system. The row of fewest nodes
of a system and benchmark calibrates, and both of those to which staging was fitted. Rows of v2.0
have other programs, and no smaller row."""
HELD_MARGIN: Final = 0.03
"""A row whose use lies more above the limit did not show the most accelerators that are held."""
EXPLAINED: Final = {
    label: each["why"]
    for each in tomllib.loads(Path(__file__).with_name("simulator_misses.toml").read_text())["miss"]
    for label in each["rows"]
}
"""By the label of a row: why it is missed."""


@dataclass(frozen=True)
class Row:
    """A published result beside its simulation."""

    label: str
    comparisons: tuple[Comparison, ...]
    evidence: str
    """What of it bears on why it is missed, in numbers."""

    @property
    def missed(self) -> list[Comparison]:
        """The comparisons above their bounds."""
        return [each for each in self.comparisons if abs(each.error) > each.bound]


def main() -> None:
    """Compare, and print or store the errors."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--published", type=Path, default=os.environ.get("IOPROF_PUBLISHED"))
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.published is None:
        print("skipped: give --published FOLDER or IOPROF_PUBLISHED, a folder of published results")
        return
    folder = Path(arguments.published)
    rows = [*compared(folder), *of_hpc(folder)]
    check_explained(rows)
    found = [each for row in rows for each in row.comparisons]
    for each in found:
        print(
            f"{each.row:58} {each.quantity:18} {each.role:10} {each.error:+.3f}"
            f"{'  !' if abs(each.error) > each.bound else ''}"
        )
    for one in sums(found):
        print(one)
    if arguments.write:
        write(found)
        RESULTS.write_text("\n".join(results(rows, found)) + "\n")


def check_explained(rows: list[Row]) -> None:
    """Say where the program no longer fits what it finds."""
    missed = {row.label for row in rows if row.missed}
    for label in sorted(missed ^ EXPLAINED.keys()):
        print(f"{label}: {'has no explanation' if label in missed else 'is no miss any more'}")


def results(rows: list[Row], found: list[Comparison]) -> Iterator[str]:
    """The lines of the file of results."""
    yield "# The simulator beside published results"
    yield ""
    yield (
        "Written by `python benchmarks/simulator.py --published FOLDER --write`; the rows are those"
        " of MLPerf Storage v1.0, v3.0"
    )
    yield (
        "and of MLPerf HPC v0.7, v1.0. Errors are predicted over published, less 1; of use the"
        " difference in points. A mark (!)"
    )
    yield (
        "stands at an error above its bound. No value was fitted to a row that validates; what the"
        " model consists of was chosen"
    )
    yield "with all rows in view."
    yield ""
    yield "| quantity | rows | within its bound | bound | median | worst |"
    yield "|---|---|---|---|---|---|"
    for each in sums(found):
        bound = BOUNDS[each.quantity.rpartition(", ")[0]]
        yield (
            f"| {each.quantity} | {each.count} | {each.within} | {bound:.0%} | {each.median:.1%} |"
            f" {each.worst:.1%} |"
        )
    yield ""
    yield "## All rows"
    yield ""
    yield "| row | role | errors |"
    yield "|---|---|---|"
    for row in rows:
        roles = " and ".join(dict.fromkeys(each.role for each in row.comparisons))
        yield f"| {row.label} | {roles} | {errors(row.comparisons)} |"
    yield ""
    yield "## Misses explained one by one"
    yield ""
    yield (
        "Accelerators held: near the limit, use falls slowly with more ranks, so that 1 to 5 points"
        " of use are 10 to 200 %"
    )
    yield "of the ranks. That is not repeated below."
    for role in (VALIDATES, CALIBRATES):
        yield ""
        yield f"Rows that {'validate' if role == VALIDATES else 'calibrate'}:"
        yield ""
        for row in rows:
            missed = [each for each in row.missed if each.role == role]
            if missed:
                yield f"- **{row.label}** ({errors(missed)}). {row.evidence}"
                yield f"  {EXPLAINED.get(row.label, 'Not explained.')}"


def errors(found: Iterable[Comparison]) -> str:
    """In one line."""
    return ", ".join(
        f"{each.quantity} {100 * each.error:+.1f}{' points' if each.quantity == USE else ' %'}"
        f"{' !' if abs(each.error) > each.bound else ''}"
        for each in found
    )


def sums(found: list[Comparison]) -> Iterator[Summed]:
    """By quantity and role."""
    from statistics import median

    for role in (CALIBRATES, VALIDATES):
        for quantity in BOUNDS:
            errors = [each for each in found if (each.quantity, each.role) == (quantity, role)]
            if errors:
                yield Summed(
                    f"{quantity}, {role}",
                    len(errors),
                    sum(abs(each.error) <= each.bound for each in errors),
                    median(abs(each.error) for each in errors),
                    max(abs(each.error) for each in errors),
                )


def compared(folder: Path) -> Iterator[Row]:
    """Each row of both rounds."""
    with (folder / "mlperf_storage_v1.0.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        table = next(table for part, table in SYSTEMS if part in row["system"] + row["variant"])
        is_fitted = {
            "juicefs": not is_later(row, rows),
            "hpe-c500": row["num_accelerators"] == "2",
            "iei-400g": row["accelerator"] == "A100"
            and not (row["workload"] == "cosmoflow" and is_later(row, rows)),
        }.get(table, row["accelerator"] == "A100")
        role = CALIBRATES if is_fitted else VALIDATES
        yield of_row(
            row,
            table,
            role,
            samples_per_s=float(row["samples_per_s_median"]),
            use=float(row["au_pct_median"]) / 100,
            limit=float(row["au_limit_pct"]) / 100,
        )
    with (folder / "mlperf_storage_v3.0.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if "oci" in row["system"] and row["workload"] == "unet3d":
                first = row["num_accelerators"] == "5"
                nodes = int(row["storage_nodes"])
                yield of_row(
                    row | {"accelerator": "B200"},
                    "aistore-oci",
                    CALIBRATES if first else VALIDATES,
                    samples_per_s=float(row["samples_per_s"]),
                    use=float(row["au_pct_mean"]) / 100,
                    limit=float(row["au_limit_pct"]) / 100,
                    larger=nodes / 3,
                )


def of_hpc(folder: Path) -> Iterator[Row]:
    """Epochs and staging of MLPerf HPC: strong scaling, and instances that read the same data."""
    with (folder / "mlperf_hpc.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["dataset_bytes_uncompressed"]]
    found = [
        (row, table)
        for row in rows
        for of_round, part, table in HPC_SYSTEMS
        if row["round"] == of_round and part in row["system"]
    ]
    fewest: dict[tuple[str, str], str] = {}
    for row, table in sorted(found, key=lambda each: int(each[0]["num_nodes"])):
        if row["scaling"] == "weak" and table == "dgx-a100":
            continue  # dozens of instances that share the storage
        name = fewest.setdefault((table, row["benchmark"]), row["system"])
        role = CALIBRATES if name == row["system"] else VALIDATES
        yield of_hpc_row(row, table, role)


def of_hpc_row(row: dict[str, str], table: str, role: str) -> Row:
    """Its first and later epochs of training, and its staging."""
    system = load_system(f"mlperf-hpc:{table}")
    samples, batch = int(row["train_samples"]), int(float(row["local_batch_size"]))
    job = described(f"hpc-{row['benchmark']}", system.device, samples=samples, batch=batch)
    is_staged = row["staging_is_real"] == "yes"
    ranks, nodes = int(row["num_accelerators"]), int(row["num_nodes"])
    reads_from = STAGED if is_staged else SHARED
    made = Setting(ranks, nodes, -(-ranks // nodes), reads_from)
    predicted = simulate(system, job, made, epochs=2)
    times = [
        (FIRST, predicted.first.seconds.value, row["first_epoch_train_s_median"]),
        (LATER, predicted.later.seconds.value, row["later_epoch_train_s_median"]),
    ]
    if is_staged:
        of_all = replace(job, samples=samples + int(row["eval_samples"]))
        shared = replace(made, reads_from=STAGED)
        times.append((STAGING, staging_s(part_of(system), of_all, shared), row["staging_s_median"]))
    fitted = table == "dgx-a100" and row["benchmark"] == "cosmoflow"
    label = f"{row['org']} {row['system']} ({row['round']}), {row['benchmark']}, {ranks}"
    comparisons, evidence = [], []
    for quantity, seconds, published in times:
        error = seconds / float(published) - 1
        is_fitted = quantity == STAGING and fitted
        comparisons.append(comparison(label, quantity, CALIBRATES if is_fitted else role, error))
        evidence.append(f"{quantity} {float(published):.1f} s, simulated {seconds:.1f}")
    return Row(label, tuple(comparisons), f"Published: {'; '.join(evidence)}.")


def comparison(label: str, quantity: str, role: str, error: float) -> Comparison:
    """With the reason, where a row that validates is missed."""
    bound = BOUNDS[quantity]
    why = EXPLAINED.get(label, "") if abs(error) > bound and role == VALIDATES else ""
    return Comparison(label, quantity, role, round(error, 4), bound, why)


def part_of(system: System) -> Numbers:
    """The system, whose nodes stage a part of the data each."""
    return replace(system.at("value"), disk_capacity_bytes=0.0)


def is_later(row: dict[str, str], rows: list[dict[str, str]]) -> bool:
    """Whether its system has a smaller row of its workload and accelerator."""
    same = [
        int(each["num_accelerators"])
        for each in rows
        if all(each[key] == row[key] for key in ("system", "workload", "accelerator"))
    ]
    return int(row["num_accelerators"]) > min(same)


def of_row(
    row: dict[str, str],
    table: str,
    role: str,
    *,
    samples_per_s: float,
    use: float,
    limit: float,
    larger: float = 1.0,
) -> Row:
    """Use, samples/s and accelerators held, each with its error."""
    system = load_system(f"mlperf-storage:{table}")
    key = "storage.bytes_per_s"
    values = system.values | {
        key: replace(system.values[key], value=system.values[key].value * larger)
    }
    system = replace(system, values=values)
    name = f"mlperf-{row['workload']}"
    job = described(
        name,
        row["accelerator"].lower(),
        samples=int(row["num_files"]) * int(row["samples_per_file"]),
        workers=int(row["read_threads"] or 8),
    )
    ranks, nodes = int(row["num_accelerators"]), int(row["num_client_hosts"])
    found = simulate(system, job, Setting(ranks, nodes, -(-ranks // nodes)))
    label = f"{row['org']} {table}, {row['workload']}, {ranks} {row['accelerator']}"
    simulated = found.first.use.value
    differences = [
        (USE, simulated - use),
        ("samples/s", found.first.samples_per_s.value / samples_per_s - 1),
    ]
    if use < limit + HELD_MARGIN:
        differences.append(("accelerators held", held(system, job, nodes, limit) / ranks - 1))
    compute_s = float(job.compute_s.mean())
    most = max(found.first.busy, key=lambda name: found.first.busy[name] * (name != "compute"))
    evidence = (
        f"A step takes {1e3 * compute_s * (1 / use - 1):.3g} ms beside its computation of"
        f" {1e3 * compute_s:.3g}, simulated {1e3 * compute_s * (1 / simulated - 1):.3g}; use in"
        f" single epochs {row['au_pct_epoch_min']} to {row['au_pct_epoch_max']} %; each of"
        f" {nodes} hosts got {samples_per_s * job.sample_bytes / nodes / 1e9:.3g} GB/s; most used"
        f" in the simulation: {most}, {found.first.busy[most]:.0%}."
    )
    made = (comparison(label, quantity, role, error) for quantity, error in differences)
    return Row(label, tuple(made), evidence)


def write(found: list[Comparison]) -> None:
    """Store the errors."""
    lines = [
        "# How far the simulator was from published results. Written by benchmarks/simulator.py"
        " --write; see validation.py.",
    ]
    for each in found:
        lines += ["", "[[comparison]]", f'row = "{each.row}"', f'quantity = "{each.quantity}"']
        lines += [f'role = "{each.role}"', f"error = {each.error}", f"bound = {each.bound}"]
        lines += [f'why = "{each.why}"'] if each.why else []
    path = Path(__file__).parents[1] / "ioprof" / "model" / "simulator" / "validation.toml"
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
