"""The built-in job under a launcher of tasks (srun, mpirun, torchrun): one `ioprof run` and one
rank in each task.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from ioprof.errors import CommandError
from ioprof.jobs.options import RunOptions
from ioprof.loaders.scaling import Scale
from ioprof.recording.parts import Part, name_of_job, own_part, parts_folder
from ioprof.train.config import JobConfig

_LOCAL: Final = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    ("JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"),
    ("SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)
"""Variables of the number of a task among those of its host, and of how many these are, in the
order of `parts.own_part`."""


def with_task(options: RunOptions, environment: Mapping[str, str]) -> RunOptions:
    """The options with as many ranks as the launcher started tasks; raises CommandError for what
    tasks cannot share.
    """
    part = own_part(environment)
    if part is None:
        return options
    if "ranks" in options.given and options.ranks != part.of:
        raise CommandError(
            f"--ranks {options.ranks}: the launcher started {part.of} tasks, each a rank; leave"
            " --ranks out"
        )
    if options.out is None:
        name = name_of_job(environment)
        if name is None:
            raise CommandError(
                "--out is missing: the launcher has no number of the job that all tasks could name"
                " the run by"
            )
        options = replace(options, out=Path("runs") / name)
    if options.stage_to is not None and local_variables(environment).get("LOCAL_WORLD_SIZE") != "1":
        raise CommandError(
            f"--stage-to {options.stage_to}: tasks of one host would copy at the same time; start"
            " one per host"
        )
    return options.changed(ranks=part.of)


def check_shared_dataset(options: RunOptions, scale: Scale, environment: Mapping[str, str]) -> None:
    """CommandError where each of several tasks would make the dataset."""
    if own_part(environment) is None or options.loader == "null":
        return
    if options.dataset is None:
        raise CommandError(
            "no dataset was given, and several tasks cannot make one; make it first: ioprof convert"
            " --help"
        )
    if not scale.is_one and not scale.beside(Path(options.dataset).resolve()).exists():
        what = f"--dataset-scale {scale}: several tasks cannot make it at the same time"
        raise CommandError(
            f"{what}; make it with one: ioprof run {options.dataset} --dataset-scale {scale}"
            " --steps 1"
        )


def as_task(config: JobConfig, out: Path, environment: Mapping[str, str]) -> JobConfig:
    """The job of the rank of this task; `config` itself where no launcher started tasks."""
    part: Part | None = own_part(environment)
    if part is None:
        return config
    return replace(
        config, first_rank=part.number, is_task=True, meeting=parts_folder(out), job=part.job
    )


def local_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """`LOCAL_RANK` and `LOCAL_WORLD_SIZE`, as torchrun gives them, as far as the launcher says
    it.
    """
    for rank, size in _LOCAL:
        if environment.get(rank, "").isdigit():
            found = {"LOCAL_RANK": environment[rank]}
            return (
                {**found, "LOCAL_WORLD_SIZE": environment[size]}
                if environment.get(size, "").isdigit()
                else found
            )
    return {}
