"""Options of `ioprof run` that are about some loaders only: each loader honours what it is given,
or refuses it in one line."""

from pathlib import Path
from typing import Any, Final

import pytest
from made_datasets import made
from PIL import Image

from ioprof.errors import CommandError
from ioprof.format.dataset import Dataset
from ioprof.jobs.loader_options import IGNORED, check_loader_options
from ioprof.jobs.options import RunOptions
from ioprof.jobs.training_run import plan_job
from ioprof.loaders import LOADERS, backend_kind
from ioprof.loaders.base import LoadingOptions
from ioprof.loaders.dali_pipelines import is_installed
from ioprof.options import declarations, given_options
from ioprof.reporter import SILENT

CHOICES: Final = {
    each.name: each.option.choices
    for each in declarations(LoadingOptions)
    if each.option and each.option.choices
}

FORMS: Final[dict[str, dict[str, Any]]] = {
    "files": {"layout": "files"},
    "lmdb": {"layout": "lmdb"},
    "webdataset": {"layout": "webdataset"},
    "parquet": {"layout": "parquet"},
    "raw": {"layout": "raw"},
    "files of raw": {"layout": "files", "image": "rgb256", "encoding": "raw", "size": 16},
    "files of png": {"layout": "files", "image": "rgb256", "encoding": "png", "size": 16},
}
JPEGS: Final = ("files", "lmdb", "webdataset", "parquet", "raw")
OWN: Final = {(layout, layout) for layout in JPEGS} | {("threads", layout) for layout in JPEGS}
"""Loader and form, of loaders that decode JPEGs by ioprof's decoder."""
DECODED: Final = {
    (name, form) for name in ("files", "threads") for form in ("files of raw", "files of png")
}
DALI: Final = {
    ("dali", form) for form in FORMS if FORMS[form]["layout"] in ("files", "lmdb", "webdataset")
}
BOTH_WAYS: Final = {("lmdb", "lmdb"), ("raw", "raw")}

HONOURED: Final = {
    ("workers", 0): OWN | DECODED,
    ("workers", 3): OWN | DECODED | DALI,
    ("lmdb_read", "mmap"): BOTH_WAYS,
    ("lmdb_read", "pread"): BOTH_WAYS | {("threads", "lmdb"), ("threads", "raw")},
    **{("lmdb_readahead", value): {("lmdb", "lmdb")} for value in CHOICES["lmdb_readahead"]},
    **{("decode", value): OWN for value in CHOICES["decode"]},
    ("on_corrupt", "fail"): OWN | DECODED,
    ("on_corrupt", "quarantine"): OWN | DECODED,
    ("on_corrupt", "accept"): OWN,
    ("cache", "cold"): OWN | DECODED | DALI,
    ("stage_to", "."): OWN | DECODED | DALI,
}
"""Of each option: the loaders, and the forms of data, that honour the value. All others refuse
it."""
OF_THE_JOB: Final = {
    *(
        "dataset",
        "loader",
        "device",
        "ranks",
        "batch_size",
        "global_batch_size",
        "steps",
        "epochs",
        "seed",
        "memory_limit",
    ),
    *(
        "out",
        "force",
        "stacks",
        "preset",
        "model",
        "copy",
        "exchange",
        "ranks_per_node",
        "bf16",
        "channels_last",
        "eval_every",
    ),
    *(
        "eval_data",
        "checkpoint_every",
        "checkpoints",
        "resume",
        "probe_network",
        "predict_epochs",
        "as_of",
        "parallel",
        "microbatches",
    ),
    *("threads", "dataset_scale", "stage_mode", "keep_staged"),
}
"""Options that mean the same with every loader, or that are refused elsewhere with what they depend
on."""


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    """Four images in each form."""
    root = tmp_path_factory.mktemp("forms")
    for record in range(4):
        folder = root / "tree" / f"n{record % 2:08d}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (60 * record, 0, 0)).save(folder / f"{record}.JPEG")
    return {form: made(root / "tree", root / form, **options) for form, options in FORMS.items()}


def test_each_option_is_in_the_table() -> None:
    """A new option of `run` has a place: it depends on the loader, or it does not."""
    assert {each.name for each in declarations(RunOptions)} == set(IGNORED) | OF_THE_JOB
    assert set(IGNORED) == {option for option, _ in HONOURED}
    assert all(
        {(option, value) for value in values} <= set(HONOURED) for option, values in CHOICES.items()
    )


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(("option", "value"), HONOURED)
def test_an_option_is_honoured_or_refused(
    datasets: dict[str, Dataset],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    loader: str,
    option: str,
    value: Any,
) -> None:
    """Honoured: the job is told the value. Refused: one line with the value, and what to type."""
    monkeypatch.chdir(tmp_path)
    layouts = backend_kind(loader).layouts
    for form, dataset in datasets.items():
        if layouts and dataset.layout not in layouts:
            continue
        given = {
            "loader": loader,
            "steps": 1,
            "batch_size": 1,
            "out": tmp_path / "run",
            option: value,
        }
        options = given_options(RunOptions, {"dataset": dataset.path, **given})
        if (loader, form) not in HONOURED[option, value]:
            with pytest.raises(
                CommandError, match=f"^--{option.replace('_', '-')} {value}"
            ) as refused:
                check_loader_options(options, loader, dataset)
            assert "\n" not in str(refused.value)
            assert "leave" in str(refused.value) or "give" in str(refused.value)
            continue
        check_loader_options(options, loader, dataset)
        if loader != "dali" or is_installed():
            job = plan_job(options, {}, SILENT)
            if option == "stage_to":
                assert tmp_path == job.stage.place.folder.resolve()
            else:
                assert value == (job.cache if option == "cache" else getattr(job.config, option))


def test_what_fills_a_copy_reads_by_pread(datasets: dict[str, Dataset]) -> None:
    """So neither the map nor its readahead can be asked for."""
    for chosen, expected in (
        ({"lmdb_read": "mmap"}, "--lmdb-read mmap"),
        ({"lmdb_readahead": "on"}, "--lmdb-readahead on"),
    ):
        options = given_options(
            RunOptions, {"stage_to": ".", "stage_mode": "while-training", **chosen}
        )
        with pytest.raises(
            CommandError,
            match=f"^{expected}: --stage-mode while-training reads by pread; leave it out",
        ):
            check_loader_options(options, "lmdb", datasets["lmdb"])


def test_threads_say_why_they_do_not_map(datasets: dict[str, Dataset]) -> None:
    """What was ignored once: the reason, and the loader that does."""
    with pytest.raises(
        CommandError,
        match=r"reads by pread, since a page fault .* leave it out, or give --loader lmdb",
    ):
        check_loader_options(
            given_options(RunOptions, {"lmdb_read": "mmap"}), "threads", datasets["lmdb"]
        )


def test_decoding_counts_where_the_model_is_evaluated_on_jpegs(
    datasets: dict[str, Dataset],
) -> None:
    """Images that are stored decoded are not those of the evaluation."""
    options = RunOptions(decode="full", eval_data=datasets["files"].path)
    check_loader_options(options, "files", datasets["files of raw"])


def test_the_null_loader_needs_no_multiple(datasets: dict[str, Dataset], tmp_path: Path) -> None:
    """Where the length of the job is given, nothing depends on it, and none is made."""
    options = RunOptions(
        datasets["files"].path, loader="null", steps=1, dataset_scale="2x", out=tmp_path / "run"
    )
    with pytest.raises(CommandError, match="--loader null reads none; leave it out"):
        plan_job(options, {}, SILENT)
