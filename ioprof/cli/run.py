"""`ioprof run`: the built-in distributed training job, recorded."""

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

import ioprof
from ioprof.cli.console import next_command, reporter, say
from ioprof.cli.run_output import exit_code, show_run
from ioprof.jobs.options import DEFAULT_BATCH_SIZE, DEFAULT_DEVICE
from ioprof.jobs.training_run import DEFAULT_WORKERS, command_after
from ioprof.loaders import LOADERS
from ioprof.train.accelerators.exchange import SCHEMES
from ioprof.train.copies import COPIES
from ioprof.train.models import MODELS
from ioprof.train.parallelism import PARALLEL

_Device = Annotated[
    str | None,
    Option(help=f"cpu, cuda, or emulated:NAME, which takes the known time of that device. Without it: {DEFAULT_DEVICE}."),
]
_RanksPerNode = Annotated[int | None, Option(min=1, help="Ranks on the faster link of an emulated device. Without it: all.")]
_ChannelsLast = Annotated[
    bool | None, Option("--channels-last/--no-channels-last", help="Memory order of images and weights. Without it: on a GPU.")
]
_GlobalBatchSize = Annotated[int | None, Option(min=1, help="Samples per step of all ranks together, instead of --batch-size.")]
_PredictEpochs = Annotated[
    int | None, Option(min=2, help="Predict the time of so many epochs, from the two that are made unless --epochs says more.")
]
_Parallel = Annotated[
    str | None, Option(help=f"What the ranks divide among them: {', '.join(PARALLEL)}. The latter two on --device cpu.")
]
_Microbatches = Annotated[int | None, Option(min=1, help="Parts of a batch in a pipeline. Without it: 2 per stage.")]
_ProbeNetwork = Annotated[bool, Option("--probe-network", help="Measure the network between the ranks before the first step.")]

_LmdbReadahead = Annotated[
    str | None,
    Option(help="Whether the kernel reads ahead in the map of an LMDB: auto (default), by size, memory and device; on; off."),
]
_DatasetScale = Annotated[str | None, Option(help="Read a multiple of the dataset: 0.5x, 2x, 50%; made next to it, once.")]
_LmdbRead = Annotated[
    str | None, Option(help="How --loader lmdb and raw read: mmap (default), through the memory map, or pread, as threads do.")
]
_Decode = Annotated[str | None, Option(help="Of a JPEG: roi (default), the crop alone; full, all of it; pillow, all by Pillow.")]
_OnCorrupt = Annotated[
    str | None,
    Option(help="A JPEG that libjpeg warns of, or no image: fail (default); quarantine, leave it out; accept, as Pillow does."),
]


def run(
    dataset: Annotated[Path | None, Argument(help="Folder made by `ioprof convert`. Without it a synthetic one is made.")] = None,
    loader: Annotated[str | None, Option(help=f"One of {', '.join(LOADERS)}. Without it: the dataset's layout.")] = None,
    preset: Annotated[str | None, Option(help="A published training: see ioprof presets; or a file NAME.toml.")] = None,
    model: Annotated[str | None, Option(help=f"One of {', '.join(MODELS)}. Without it: the device's.")] = None,
    device: _Device = None,
    ranks: Annotated[int | None, Option(min=1, help="Training processes. Without it: 1, or the launcher's tasks.")] = None,
    batch_size: Annotated[int | None, Option(min=1, help=f"Samples per step and rank. Without it: {DEFAULT_BATCH_SIZE}.")] = None,
    global_batch_size: _GlobalBatchSize = None,
    workers: Annotated[
        int | None, Option(min=0, help=f"Loader processes per rank (of threads: threads). Without it: {DEFAULT_WORKERS}.")
    ] = None,
    steps: Annotated[int | None, Option(min=1, help="Steps to train. Without it: one epoch.")] = None,
    epochs: Annotated[int | None, Option(min=1, help="Epochs to train, instead of --steps.")] = None,
    seed: Annotated[int, Option(min=0, help="Seed of the order of the samples and of their crops.")] = 0,
    lmdb_read: _LmdbRead = None,
    lmdb_readahead: _LmdbReadahead = None,
    decode: _Decode = None,
    on_corrupt: _OnCorrupt = None,
    copy: Annotated[str | None, Option(help=f"How batches get to the device: {', '.join(COPIES)}.")] = None,
    exchange: Annotated[str | None, Option(help=f"Of gradients, on an emulated device: {', '.join(SCHEMES)}.")] = None,
    ranks_per_node: _RanksPerNode = None,
    bf16: Annotated[bool | None, Option("--bf16/--no-bf16", help="Compute in bfloat16 (autocast). Without it: on a GPU.")] = None,
    channels_last: _ChannelsLast = None,
    parallel: _Parallel = None,
    microbatches: _Microbatches = None,
    predict_epochs: _PredictEpochs = None,
    probe_network: _ProbeNetwork = False,
    eval_data: Annotated[Path | None, Option(help="Dataset to evaluate the model on, at the end of each epoch.")] = None,
    eval_every: Annotated[str | None, Option(help="Evaluate after so many steps, or epochs (2epochs), instead.")] = None,
    checkpoints: Annotated[Path | None, Option(help="Folder for checkpoints, one at the end of each epoch.")] = None,
    checkpoint_every: Annotated[str | None, Option(help="A checkpoint after so many steps, or epochs (2epochs), instead.")] = None,
    resume: Annotated[bool, Option("--resume", help="Go on from the newest checkpoint.")] = False,
    dataset_scale: _DatasetScale = None,
    cache: Annotated[str | None, Option(help="Page cache at the start: cold, warm or as-is; proven by residency.")] = None,
    memory_limit: Annotated[str | None, Option(help="Memory of the job, its page cache included, such as 2G.")] = None,
    stage_to: Annotated[str | None, Option(help="Copy the dataset to this folder of the node first; auto finds one.")] = None,
    stage_mode: Annotated[str | None, Option(help="before the job (default), or while-training: in the first epoch.")] = None,
    keep_staged: Annotated[bool, Option("--keep-staged", help="Leave the copy there for the next run.")] = False,
    stacks: Annotated[bool, Option("--stacks/--no-stacks", help="Sample the Python stacks of ranks and workers.")] = True,
    out: Annotated[Path | None, Option(help="Folder for the run. Without it: ioprof-DATE-TIME here.")] = None,
    force: Annotated[bool, Option("--force", help="Replace the folder of an earlier run.")] = False,
    json: Annotated[bool, Option("--json", help="Print the summary as JSON.")] = False,
) -> int:
    """Train with the built-in job and report what each step waited for."""
    recorded = ioprof.run(
        dataset, loader=loader, device=device, ranks=ranks, batch_size=batch_size, workers=workers, steps=steps, epochs=epochs,
        seed=seed, lmdb_read=lmdb_read, dataset_scale=dataset_scale, cache=cache, memory_limit=memory_limit, stage_to=stage_to,
        stage_mode=stage_mode, keep_staged=keep_staged, stacks=stacks, out=out, force=force, preset=preset, model=model, copy=copy,
        exchange=exchange, ranks_per_node=ranks_per_node, bf16=bf16, channels_last=channels_last, eval_data=eval_data,
        eval_every=eval_every, checkpoints=checkpoints, checkpoint_every=checkpoint_every, resume=resume,
        global_batch_size=global_batch_size, probe_network=probe_network, predict_epochs=predict_epochs, parallel=parallel,
        microbatches=microbatches, lmdb_readahead=lmdb_readahead, decode=decode, on_corrupt=on_corrupt,
        command=["ioprof", *sys.argv[1:]], reporter=reporter,
    )  # fmt: skip
    if recorded.trace.run.part is None:  # else the task of rank 0 prints the whole run
        show_run(recorded.analysed, json)
        say(f"the same with charts and a timeline: {(recorded.folder or Path()) / 'report.html'}")
        next_command(*command_after(recorded.analysed))
    return exit_code(recorded.analysed)
