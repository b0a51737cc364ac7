"""The simulator against published results, row by row: MLPerf Storage v1.0 and v3.0, MLPerf HPC.

    benchmarks/simulator.py --published FOLDER [--write]

FOLDER has mlperf_storage_v1.0.csv, mlperf_storage_v3.0.csv and mlperf_hpc.csv: one result per row,
medians of its runs. IOPROF_PUBLISHED names it as well. Without it nothing is compared. `--write`
stores the errors, not the results, in `ioprof/model/simulator/validation.toml`; each answer shows
them.

Rows with A100 calibrate, those with H100 validate; where a system has no A100, the smallest row of
each workload calibrates. What was calibrated stands in `ioprof/model/systems/mlperf-storage.toml`.
"""

import argparse
import csv
import os
from collections.abc import Iterator
from dataclasses import replace
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
HPC_WHY: Final = {
    STAGING: "the rate of a node falls where many copy from the same storage",
    FIRST: "what is done once grows with the ranks, and the share of the storage that a job gets"
    " is another one on each day",
    LATER: "half the batch on more ranks: kernels that are less efficient, and exchange that the"
    " computation hides no longer; their times were not published",
}
HELD_MARGIN: Final = 0.03
"""A row whose use lies more above the limit did not show the most accelerators that are held."""
WHY: Final = {
    "mlperf-cosmoflow": "steps of 3.5 to 5.5 ms, in each of which all ranks wait for the slowest;"
    " how single reads of a host differ, and so how many ranks one host feeds, is not published",
    "mlperf-resnet50": "what a sample costs a core differs between hosts by 30 %, and the rows with"
    " A100 do not tell whether cores, the client or the steps themselves bound them",
    "mlperf-unet3d": "the row that was fitted was bound by other things than this one: a client of"
    " HPE's Lustre gets slower with each rank, WEKA's and Micron's hosts with each reading thread",
}
"""What the model lacks where it misses, by workload."""


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
    found = [*compared(folder), *of_hpc(folder)]
    for each in found:
        print(
            f"{each.row:58} {each.quantity:18} {each.role:10} {each.error:+.3f}"
            f"{'  !' if abs(each.error) > each.bound else ''}"
        )
    for one in sums(found):
        print(one)
    if arguments.write:
        write(found)


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


def compared(folder: Path) -> Iterator[Comparison]:
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
        yield from of_row(
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
                yield from of_row(
                    row | {"accelerator": "B200"},
                    "aistore-oci",
                    CALIBRATES if first else VALIDATES,
                    samples_per_s=float(row["samples_per_s"]),
                    use=float(row["au_pct_mean"]) / 100,
                    limit=float(row["au_limit_pct"]) / 100,
                    larger=nodes / 3,
                )


def of_hpc(folder: Path) -> Iterator[Comparison]:
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
        yield from of_hpc_row(row, table, role)


def of_hpc_row(row: dict[str, str], table: str, role: str) -> Iterator[Comparison]:
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
    for quantity, seconds, published in times:
        error = seconds / float(published) - 1
        if quantity == STAGING and fitted:
            role = CALIBRATES
        why = HPC_WHY[quantity] if abs(error) > BOUNDS[quantity] and role == VALIDATES else ""
        label = f"{row['org']} {row['system']} ({row['round']}), {row['benchmark']}, {ranks}"
        yield Comparison(label, quantity, role, round(error, 4), BOUNDS[quantity], why)


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
) -> Iterator[Comparison]:
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
    errors = [
        (USE, found.first.use.value - use),
        ("samples/s", found.first.samples_per_s.value / samples_per_s - 1),
    ]
    if use < limit + HELD_MARGIN:
        errors.append(("accelerators held", held(system, job, nodes, limit) / ranks - 1))
    for quantity, error in errors:
        why = WHY[name] if abs(error) > BOUNDS[quantity] and role == VALIDATES else ""
        yield Comparison(label, quantity, role, round(error, 4), BOUNDS[quantity], why)


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
