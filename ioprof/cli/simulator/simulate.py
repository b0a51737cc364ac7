"""`ioprof simulate`: a job on a system that need not be at hand."""

from typing import Annotated, Any

from typer import Argument, Option

import ioprof
from ioprof.cli.console import next_command, output, print_lines
from ioprof.cli.options import takes_options
from ioprof.model.simulator.asked import SimulationAsked
from ioprof.model.simulator.system import load_system, system_names
from ioprof.model.simulator.validation import comparisons, summed
from ioprof.report.texts.simulation import (
    basis_lines,
    simulation_lines,
    simulation_table,
    validation_lines,
    validation_table,
)


@takes_options(SimulationAsked)
def simulate(
    given: dict[str, Any],
    system: Annotated[
        str,
        Argument(
            help="A system (`list` names them), a file NAME.toml, or a run folder: its host.",
            show_default=False,
        ),
    ],
    job: Annotated[
        str,
        Option(help="A model or workload (--job list names them), or a run folder: its job."),
    ] = "resnet50",
    json: Annotated[
        bool, Option("--json", help="Print the simulation as JSON, and nothing else.")
    ] = False,
) -> int:
    """Predict what a job does on a system: epochs, use of the accelerators, and what bounds it.

    All ranks are simulated, with workers, storage, network, memory and exchange. Each number has a
    range; below stands how far the simulator was from published results.
    """
    if system == "list":
        for name in system_names():
            output.print(f"{name}: {load_system(name).about}", markup=False)
        return 0
    if job == "list":
        from ioprof.model.simulator.jobs import job_names

        output.print(", ".join(job_names()), markup=False)
        return 0
    found = ioprof.simulate(system, job, **given)
    if json:
        output.file.write(found.to_json() + "\n")
        return 0
    print_lines(simulation_lines(found))
    output.print()
    output.print(simulation_table(found))
    print_lines(basis_lines(found))
    output.print()
    output.print(validation_table(comparisons()))
    print_lines(validation_lines(summed()))
    next_command("ioprof", "size", "--ranks", found.ranks)
    return 0
