"""Data and training libraries of others, used as their users do: what is recorded, and that they do
what they do without."""

import importlib.util
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl
import pytest
from hooked import SITE, environment, job_has, of_kind, recorded, run
from preload import needs_library
from quiet_machine import comparing_times, on_a_quiet_machine
from repository import EXAMPLES, PROGRAMS

from ioprof.format.trace import Trace
from ioprof.ingest import read_spool
from ioprof.report.run import Run

STEPS: Final = 18
"""Of each job: one epoch of its 72 images, 4 in a batch."""
TRANSFORM_MS: Final = 30
"""For each image: 2.2 s in all."""
LAUNCH: Final = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

pytestmark = [pytest.mark.job, needs_library]


@dataclass(frozen=True)
class Job:
    """A program that was run with and without recording."""

    run: Run
    alone: list[str]
    """What it prints without recording, by lines."""
    recorded: list[str]

    @property
    def trace(self) -> Trace:
        return self.run.trace


def need(*libraries: str) -> None:
    for library in libraries:
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed (pip install 'ioprof[libraries]')")


@pytest.fixture(scope="module")
def arrow(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The images as `datasets` keeps them."""
    need("datasets")
    return prepared("datasets", images, tmp_path_factory.mktemp("arrow"))


def prepared(library: str, images: Path, folder: Path) -> Path:
    """The images in the library's format."""
    run([PROGRAMS / f"train_with_{library}.py", "prepare", images, folder / "data"], None)
    return folder / "data"


def job(
    library: str,
    data: Path,
    folder: Path,
    *how: object,
    workers: int = 1,
    launcher: tuple[str, ...] = (),
) -> Job:
    """Run the program of a library twice at a time, once recorded, with a transform of 30 ms."""
    program = [
        *launcher,
        PROGRAMS / f"train_with_{library}.py",
        "train",
        data,
        workers,
        STEPS,
        TRANSFORM_MS,
        *how,
    ]
    command = [sys.executable, *map(str, program)]
    record = [
        sys.executable,
        "-m",
        "ioprof",
        "record",
        "--quiet",
        "--out",
        str(folder / "run"),
        "--",
        *command,
    ]
    texts = []
    for process in [_start(words) for words in (command, record)]:
        out, err = process.communicate(timeout=150)
        assert 0 == process.returncode, out + err
        texts.append(out.splitlines())
    found = Run.load(folder / "run")
    assert () == found.trace.run.capture.unobserved
    return Job(found, *texts)


def _start(command: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command, env=environment(None), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def names(spans: pl.DataFrame) -> dict[str | None, int]:
    """How many spans have each name."""
    return dict(spans.group_by(pl.col("name").cast(pl.String)).len().rows())


def assert_waits_are_tied(trace: Trace, waits: int = STEPS) -> None:
    """At least 99 % of the waits that a batch ended are for a batch whose `fetch` is known."""
    waited = of_kind(trace, "wait").filter(
        ~pl.col("name").cast(pl.String).is_in(["start", "end"]).fill_null(False)
    )
    fetched = of_kind(trace, "fetch").select("rank", "batch").unique()
    assert len(waited) >= waits
    assert len(waited.join(fetched, on=["rank", "batch"], how="semi")) >= 0.99 * len(waited)


def seconds(spans: pl.DataFrame) -> float:
    return float((spans["end_ns"] - spans["start_ns"]).sum()) / 1e9


def assert_transform_is_the_cause(found: Job, name: str, images: int = STEPS * 4) -> None:
    """The transform of 30 ms is seen under that name, is what the job waited for, and what the
    verdict says."""
    mine = of_kind(found.trace, "transform").filter(pl.col("name").cast(pl.String) == name)
    assert images * TRANSFORM_MS / 1e3 <= seconds(mine)
    assert STEPS <= mine["batch"].n_unique()
    shares = {cause.cause: cause.share or 0 for cause in found.run.summary.steps.causes}
    assert "transform" == max(shares, key=lambda cause: shares[cause]), shares
    assert "transform" == found.run.summary.verdict.bound_by


def assert_images_are_decoded(found: Job, images: int = STEPS * 4) -> None:
    """Each image once, within the fetch of a batch."""
    name = pl.col("name").cast(pl.String)
    # modules at their import, tables that are opened
    other = name.str.starts_with("zlib") | name.str.starts_with("pyarrow")
    decodes = of_kind(found.trace, "decode").filter(~other)
    assert images <= len(decodes)
    assert [] == decodes.filter(pl.col("batch").is_null())["name"].cast(pl.String).to_list()


def assert_library_is_named(found: Job, name: str) -> None:
    """Reports name the library and its version."""
    assert [name] == [text.split()[0] for text in found.run.summary.run.libraries]


@pytest.mark.job(every=4)
def test_webdataset(images: Path, tmp_path: Path) -> None:
    """A pipeline in workers: its stages are transforms, its own batches are collated, and each
    sample has its shard."""
    need("webdataset")
    data = prepared("webdataset", images, tmp_path)
    found = job("webdataset", data, tmp_path)
    assert found.alone == found.recorded
    assert_library_is_named(found, "webdataset")
    assert_waits_are_tied(found.trace)
    assert_images_are_decoded(found)
    assert_transform_is_the_cause(found, "prepared")
    taken = (
        of_kind(found.trace, "transform")
        .filter(pl.col("name").cast(pl.String) == "tar")
        .join(found.trace.files, on="file")
    )
    shards = {str(path): 12 for path in data.glob("*.tar")}
    assert shards == dict(taken.group_by("path").len().rows())
    assert len(shards) == found.trace.run.config.shards
    assert STEPS <= len(of_kind(found.trace, "collate"))
    samples = of_kind(found.trace, "fetch").drop_nulls("offset")
    assert 72 == samples["offset"].sum()


@pytest.mark.job(every=4)
@pytest.mark.parametrize(
    ("stages", "ranks", "shards"),
    [
        ("wds.SimpleShardList(urls), wds.split_by_worker", 1, 7),
        ("wds.SimpleShardList(urls), wds.split_by_node, wds.shuffle(9), wds.split_by_worker", 2, 4),
        ("wds.SimpleShardList(urls), wds.split_by_node", 2, None),
        ("wds.ResampledShards(urls), wds.split_by_worker", 1, None),
    ],
)
def test_webdataset_shards(stages: str, ranks: int, shards: int | None, tmp_path: Path) -> None:
    """Those that the workers of one rank divide; not known where all of them read all shards, or
    any at random."""
    if not job_has("webdataset"):
        pytest.skip("webdataset is not installed")
    program = f"""
import itertools, webdataset as wds
urls = ["{{}}.tar".format(number) for number in range(7)]
print(len(list(itertools.islice(iter(wds.DataPipeline({stages})), 2))))
"""
    spool = tmp_path / "spool"
    run(["-W", "ignore", "-c", program], spool, RANK="0", WORLD_SIZE=str(ranks))
    found = read_spool(spool).run
    assert () == found.capture.unobserved
    assert shards == found.config.shards


@pytest.mark.job(every=4)
def test_datasets_rows(arrow: Path, tmp_path: Path) -> None:
    """Arrow rows with an Image feature: the user's transform is that of its formatter, without the
    decoding in it."""
    found = job("datasets", arrow, tmp_path)
    assert found.alone == found.recorded
    assert_library_is_named(found, "datasets")
    assert_waits_are_tied(found.trace)
    assert_images_are_decoded(found)
    assert_transform_is_the_cause(found, "CustomFormatter")


@pytest.mark.job(every=4)
def test_datasets_stream(arrow: Path, tmp_path: Path) -> None:
    """A streamed dataset: what `map` calls while it is iterated has the name of the function."""
    found = job("datasets", arrow, tmp_path, "stream")
    assert found.alone == found.recorded
    assert_waits_are_tied(found.trace)
    assert_images_are_decoded(found)
    assert_transform_is_the_cause(found, "prepared_one")


@on_a_quiet_machine
def test_datasets_formatting(arrow: Path, tmp_path: Path) -> None:
    """Columns of numbers: what the worker does for a batch is formatting, and none of it is
    unexplained."""
    found = job("datasets", arrow, tmp_path, "numbers")
    assert found.alone == found.recorded
    assert_waits_are_tied(found.trace)
    # the first one imports
    steady = Trace(
        found.trace.run, found.trace.spans.filter(pl.col("batch") > 0), found.trace.files
    )
    formatting = of_kind(steady, "transform")
    assert {"TorchFormatter", "query_table"} == set(names(formatting))
    covered = seconds(formatting) + seconds(of_kind(steady, "collate"))
    with comparing_times():
        assert covered > 0.85 * seconds(of_kind(steady, "fetch"))


@pytest.mark.job(every=4)
def test_litdata(images: Path, tmp_path: Path) -> None:
    """Chunks in a local folder."""
    need("litdata")
    found = job("litdata", prepared("litdata", images, tmp_path), tmp_path)
    assert found.alone == found.recorded
    assert_library_is_named(found, "litdata")
    assert_waits_are_tied(found.trace)
    assert_images_are_decoded(found)
    assert_transform_is_the_cause(found, "StreamingDataset")


@pytest.mark.job(every=4)
def test_tfrecord(images: Path, tmp_path: Path) -> None:
    """A file of records with an index, as the package tfrecord reads it."""
    need("tfrecord")
    found = job("tfrecord", prepared("tfrecord", images, tmp_path), tmp_path)
    assert found.alone == found.recorded
    assert_library_is_named(found, "tfrecord")
    assert_waits_are_tied(found.trace)
    assert_images_are_decoded(found)
    assert_transform_is_the_cause(found, "prepared")
    assert "extract_feature_dict" in names(of_kind(found.trace, "transform"))


@pytest.mark.job(every=4)
def test_streaming(images: Path, tmp_path: Path) -> None:
    """MDS shards in a local folder; the `__getitem__` of the user's class is the transform."""
    need("streaming")
    if importlib.util.find_spec("torchvision") is None and not (EXAMPLES / "torchvision").exists():
        pytest.skip(
            "streaming imports torchvision, which is not installed; .ci/run puts it beside the"
            " packages"
        )
    found = job("streaming", prepared("streaming", images, tmp_path), tmp_path)
    assert found.alone == found.recorded
    assert_library_is_named(found, "streaming")
    assert_waits_are_tied(found.trace)
    assert_images_are_decoded(found)
    assert_transform_is_the_cause(found, "Pictures")


@pytest.mark.job(every=4)
def test_lightning(images: Path, tmp_path: Path) -> None:
    """A loader of unknown length is fetched one batch ahead: steps have the batch that they use.
    Validation has its name."""
    if importlib.util.find_spec("lightning") is None:
        need("pytorch_lightning")
    found = job("lightning", images, tmp_path, "stream")
    assert found.alone == found.recorded
    assert_library_is_named(found, "Lightning")
    assert_waits_are_tied(found.trace, STEPS + 3)
    steps = of_kind(found.trace, "step")
    trained = of_kind(found.trace, "wait").filter(pl.col("name").is_null())["batch"].to_list()
    assert trained[:STEPS] == steps["batch"].to_list()
    assert {"sanity check": 1, "validation": 1} == names(of_kind(found.trace, "validate"))
    assert 5 <= names(of_kind(found.trace, "wait"))["validate"] <= 6
    config = found.trace.run.config
    # and not those of the loader of the sanity check, which has none
    assert ("Stream", 1) == (
        config.dataset,
        config.workers,
    )


@pytest.mark.job(every=4)
def test_accelerate_waits_ahead(images: Path, tmp_path: Path) -> None:
    """A loader waits one batch ahead: steps have the batch that they use."""
    need("accelerate")
    found = job("accelerate", images, tmp_path, "shard")
    assert found.alone == found.recorded
    assert_library_is_named(found, "accelerate")
    assert_waits_are_tied(found.trace)
    assert [*range(STEPS)] == of_kind(found.trace, "step")["batch"].to_list()


@pytest.mark.job(every=4)
def test_accelerate_dispatches(images: Path, tmp_path: Path) -> None:
    """Rank 0 loads for all: the report says so, and only rank 0 waits for a loader."""
    need("accelerate")
    found = job("accelerate", images, tmp_path, "dispatch", launcher=LAUNCH)
    assert sorted(found.alone) == sorted(found.recorded)
    assert 0 == found.run.summary.run.loading_rank
    waited = of_kind(found.trace, "wait").drop_nulls("batch")
    assert {0} == set(waited["rank"])
    assert {0, 1} == set(of_kind(found.trace, "step")["rank"])
    sent = of_kind(found.trace, "comm").filter(
        pl.col("name").cast(pl.String).str.starts_with("broadcast")
    )
    assert {0, 1} == set(sent["rank"])


def renamed(folder: Path, file: str, old: str, new: str) -> Path:
    """A folder with another version of a package, in whose `file` a name is another one; all else
    is linked."""
    package, *within = Path(file).parts
    (folder / package).mkdir(parents=True)
    source, made = (
        Path(importlib.util.find_spec(package).submodule_search_locations[0]),
        folder / package,
    )
    for part in within:
        for entry in source.iterdir():
            if entry.name != part:
                (made / entry.name).symlink_to(entry)
        source, made = source / part, made / part
        if source.is_dir():
            made.mkdir()
    made.write_text(re.sub(rf"\b{old}\b", new, source.read_text()))
    return folder


@pytest.mark.job(every=4)
@pytest.mark.parametrize(
    ("file", "name", "place"),
    [
        ("webdataset/filters.py", "_map_tuple", "webdataset.filters._map_tuple"),
        (
            "datasets/iterable_dataset.py",
            "_apply_feature_types_on_example",
            "datasets.iterable_dataset._apply_feature_types_on_example",
        ),
        (
            "litdata/streaming/dataset.py",
            "_create_cache",
            "litdata.streaming.dataset.StreamingDataset._create_cache",
        ),
        ("tfrecord/reader.py", "extract_feature_dict", "tfrecord.reader.extract_feature_dict"),
        (
            "accelerate/data_loader.py",
            "_fetch_batches",
            "accelerate.data_loader.DataLoaderDispatcher._fetch_batches",
        ),
    ],
)
def test_an_unknown_version_is_left_alone(file: str, name: str, place: str, tmp_path: Path) -> None:
    """A version without a function that a hook looks for: the report says so, and nothing there is
    replaced."""
    package, module = file.split("/")[0], file.removesuffix(".py").replace("/", ".")
    need(package)
    other = renamed(tmp_path / "site", file, name, "another_name")
    program = (
        f"import {module} as module, inspect; print('another_name' in inspect.getsource(module))"
    )
    spool = tmp_path / "spool"
    assert (
        "True"
        in run(["-W", "ignore", "-c", program], spool, PYTHONPATH=f"{SITE}:{other}").splitlines()
    )
    found = read_spool(spool).run.capture.unobserved
    assert [place] == [entry.unobserved.split(": ")[1] for entry in found]


@pytest.mark.job(every=4)
def test_no_library_is_imported(tmp_path: Path) -> None:
    """A job that uses none of these libraries loads none of them."""
    program = (
        "import sys, torch.utils.data; print(*sorted({name.partition('.')[0] for name in"
        " sys.modules}))"
    )
    loaded = set(run(["-c", program], tmp_path / "spool").split())
    assert set() == loaded & {
        "webdataset",
        "datasets",
        "litdata",
        "streaming",
        "lightning",
        "accelerate",
        "ray",
        "tfrecord",
    }
    recorded(tmp_path / "spool")
