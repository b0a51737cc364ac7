"""`ioprof generate` and `ioprof convert`: results on standard output, one line per error, and the
next command to type."""

import json
import shlex
from pathlib import Path

import pytest
from images import BAD, jpeg
from made_datasets import tree

from ioprof.cli import main
from ioprof.cli.console import reporter
from ioprof.converters import ConvertOptions, Part, convert, run_conversion
from ioprof.format.dataset import LAYOUTS, Dataset
from ioprof.loaders import LOADERS


def ran(capsys, *arguments: object, code: int = 0) -> tuple[str, list[str]]:
    """Standard output, and the lines on standard error."""
    assert code == main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return printed.out, printed.err.splitlines()


def refused(capsys, *arguments: object, code: int = 2) -> str:
    """The one line of a command that fails."""
    out, lines = ran(capsys, *arguments, code=code)
    assert ("", 1) == (out, len(lines)), lines
    assert lines[0].startswith("ioprof: ")
    return lines[0]


def test_convert_says_what_it_made_and_what_comes_next(capsys, small_tree, tmp_path):
    """One line of result with its numbers, and a command that can be typed as it stands."""
    out, lines = ran(
        capsys,
        "convert",
        "imagenet",
        small_tree,
        tmp_path / "my data",
        "--layout",
        "lmdb",
        "--workers",
        1,
    )
    assert 1 == len(out.splitlines())
    assert all(word in out for word in ("36 records", "MB in", "images/s", "MB/s"))
    assert ["next:", "ioprof", "run", str(tmp_path / "my data")] == shlex.split(lines[-1])
    assert "convert: 36 of 36" in lines


def test_convert_prints_the_manifest_as_json(capsys, small_tree, tmp_path):
    """The manifest's keys, the path, the seconds and what was passed over, and nothing else on
    standard output."""
    out, _ = ran(
        capsys,
        "convert",
        "imagenet",
        small_tree,
        tmp_path / "d",
        "--image",
        "rgb256",
        "--json",
        "--workers",
        1,
    )
    keys = json.loads(out)
    manifest = json.loads((tmp_path / "d" / "dataset.json").read_text())
    assert {*manifest, "path", "seconds", "passed_over"} == {*keys}
    assert {key: keys[key] for key in manifest} == manifest
    assert ("rgb256", "jpeg", 256, 90, "square") == tuple(keys["image"].values())


@pytest.mark.job
def test_every_option_does_what_it_says(capsys, small_tree, tmp_path):
    """Each leaves its mark in the manifest."""
    options = (
        "--layout files --image rgb256 --encoding jpeg --quality 50 --split val --shuffle-seed 7"
        " --limit 9 --workers 2"
    )
    ran(capsys, "convert", "imagenet", small_tree, tmp_path / "d", *options.split())
    dataset = Dataset.load(tmp_path / "d")
    assert ("files", "val", 50, 7, 9) == (
        dataset.layout,
        dataset.split,
        dataset.image.quality,
        dataset.shuffle_seed,
        dataset.records,
    )
    assert ["dataset.json", "val", "val.txt"] == sorted(
        path.name for path in dataset.path.iterdir()
    )
    ran(capsys, "convert", "imagenet", small_tree, tmp_path / "d", "--force", "--workers", 1)
    assert 36 == Dataset.load(tmp_path / "d").records


def test_quarantined_images_are_counted_and_the_first_is_named(capsys, tmp_path):
    """In the result and in the messages."""
    source = tree(
        tmp_path / "source", {"n01/a.JPEG": jpeg(), "n01/b.JPEG": b"", "n01/c.JPEG": BAD["html"][0]}
    )
    out, lines = ran(
        capsys,
        "convert",
        "imagenet",
        source,
        tmp_path / "d",
        "--on-error",
        "quarantine",
        "--workers",
        1,
    )
    assert "1 records, 2 quarantined" in out
    assert any("n01/" in line and "dataset.json" in line for line in lines)


def test_what_is_passed_over_is_said(capsys, tmp_path):
    """Files that are no images by their names, in the result."""
    source = tree(
        tmp_path / "source",
        {"n01/a.JPEG": jpeg(), "n01/b.gif": b"", "n01/c.txt": b"", "n01/d.txt": b""},
    )
    out, _ = ran(capsys, "convert", "imagenet", source, tmp_path / "d", "--workers", 1)
    assert "3 files passed over: not images by their names (.txt 2, .gif 1)" in out


def test_generate_says_what_a_killed_one_left(capsys, tmp_path):
    """Its folder, with what to type; a conversion's is gone on with instead."""
    left = tmp_path / ".d.partial-elsewhere-1-00000000"
    left.mkdir()
    _, lines = ran(capsys, "generate", "imagenet", tmp_path / "d", "--images", 1, "--workers", 1)
    assert any(line.endswith(f"rm -r {left}") for line in lines)
    assert left.is_dir()


def test_the_rate_is_that_of_this_run(capsys, tmp_path):
    """Images of an interrupted run are not in the rate: of 20 images 2 were done, and the clock
    says 3 s."""
    source = tree(
        tmp_path / "source", {f"n01/{number}.JPEG": jpeg(seed=number) for number in range(20)}
    )

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "d", ConvertOptions(workers=1), stop)
    clock = iter([10.0, 13.0])
    result = run_conversion(
        source,
        tmp_path / "d",
        ConvertOptions(workers=1),
        reporter=reporter,
        now_s=lambda: next(clock),
    )
    assert (
        "resuming: the same command has done 2 of 20 images before"
        in capsys.readouterr().err.splitlines()
    )
    out = result.text()
    assert "20 records" in out
    assert "in 3.0 s (6 images/s for the last 18)" in out


def test_what_is_converted_can_be_run():
    """Every layout has the loader that the command which is printed next takes by default."""
    assert set() == set(LAYOUTS) - set(LOADERS)


def test_a_part_speaks_of_what_it_has(capsys, tmp_path):
    """No manifest: its bad images are listed in part.json, which --json prints."""
    source = tree(
        tmp_path / "source", {"n01/a.JPEG": jpeg(), "n01/b.JPEG": b"", "n02/c.JPEG": jpeg(seed=1)}
    )
    words = [
        "convert",
        "imagenet",
        source,
        tmp_path / "d",
        "--part",
        "1/1",
        "--on-error",
        "quarantine",
        "--workers",
        1,
    ]
    out, lines = ran(capsys, *words)
    assert "2 records, 1 quarantined" in out
    assert "quarantined 1 images, listed in part.json; the first: n01/b.JPEG: empty file" in lines
    assert not any("dataset.json" in line or "manifest" in line for line in [out, *lines])
    out, _ = ran(capsys, *words, "--force", "--json")
    keys = json.loads(out)
    told = json.loads((tmp_path / "d.part-1-of-1" / "part.json").read_text())
    assert {
        **told,
        "path": f"{tmp_path}/d.part-1-of-1",
        "passed_over": {},
        "seconds": keys["seconds"],
    } == keys


@pytest.mark.parametrize(
    ("options", "stripes"),
    [
        (("files", None), "lfs setstripe -c 1"),
        (("lmdb", None), "lfs setstripe -E 1G -c 1 -E 16G -c 4 -E -1 -c -1 -S 4M"),
        (("webdataset", Part(1, 2)), "lfs setstripe -E 1G -c 1 -E 16G -c 4 -E -1 -c -1 -S 4M"),
    ],
)
def test_the_stripes_are_those_of_what_is_written(capsys, small_tree, tmp_path, options, stripes):
    """A part is an LMDB whatever it is a part of; no folder is named: lfs makes a file of one that
    is not there yet."""
    layout, part = options
    settings = ConvertOptions(layout=layout, workers=1)
    run_conversion(
        small_tree, tmp_path / "d", settings, part, reporter=reporter, on_lustre=lambda _: True
    )
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "Lustre" in line]
    assert (
        f"on Lustre: --stripe does {stripes} on the new folder, before anything is written" in line
    )
    assert str(tmp_path) not in line


@pytest.mark.job
def test_generate_says_what_it_made_and_what_comes_next(capsys, tmp_path):
    """And the next command works."""
    out, lines = ran(
        capsys,
        "generate",
        "imagenet",
        tmp_path / "g",
        "--images",
        4,
        "--classes",
        2,
        "--workers",
        1,
    )
    assert "4 images in 2 classes" in out
    _, *following = shlex.split(lines[-1])
    assert [
        "ioprof",
        "convert",
        "imagenet",
        str(tmp_path / "g"),
        str(tmp_path / "g-dataset"),
    ] == following
    ran(capsys, *following[1:])
    assert 4 == Dataset.load(tmp_path / "g-dataset").records


def test_generate_prints_what_it_made_as_json(capsys, tmp_path):
    """What `synthetic.json` says, the path and the seconds."""
    out, _ = ran(
        capsys,
        "generate",
        "imagenet",
        tmp_path / "g",
        "--images",
        3,
        "--classes",
        3,
        "--form",
        "tars",
        "--seed",
        5,
        "--json",
    )
    keys = json.loads(out)
    assert {
        **json.loads((tmp_path / "g" / "synthetic.json").read_text()),
        "path": str(tmp_path / "g"),
    } == {key: value for key, value in keys.items() if key != "seconds"}
    assert (3, 3, 5, "tars") == (keys["images"], keys["classes"], keys["seed"], keys["form"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--layout tfrecord", "choose one of files, lmdb"),
        ("--image rgb512", "choose one of original, rgb256"),
        ("--image rgb256 --encoding bmp", "choose one of jpeg, png, raw"),
        ("--encoding jpeg", "--image rgb256 only"),
        ("--quality 90", "--encoding jpeg only"),
        ("--image rgb256 --encoding raw --quality 90", "--encoding jpeg only"),
        ("--image rgb256 --quality 100", "from 1 to 95"),
        ("--on-error ignore", "choose one of fail, quarantine"),
        ("--workers 0", "from 1"),
        ("--limit 0", "from 1"),
        ("--shuffle-seed -1", "from 0"),
        ("--split ../x", "--split"),
        ("--split dataset.json", "--split"),
        ("--workers many", "--workers"),
        (
            "--engine dask --scheduler tcp://localhost:1 --workers 2",
            "the Dask cluster determines the number of workers",
        ),
        ("--colour blue", "--colour"),
    ],
)
def test_options_that_make_no_sense_are_refused(capsys, small_tree, tmp_path, options, words):
    """Exit code 2, one line that names what would be right, nothing written."""
    assert words in refused(
        capsys, "convert", "imagenet", small_tree, tmp_path / "d", *options.split()
    )
    assert [] == list(tmp_path.iterdir())


def test_bad_places_are_refused(capsys, small_tree, tmp_path):
    """Source and destination, each with what to do; the word `imagenet` is required."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "x").write_text("")
    cases: list[tuple[Path, Path, str]] = [
        (tmp_path / "missing", tmp_path / "d", "no such file or folder"),
        (tmp_path / "empty", tmp_path / "d", "neither a folder of class folders"),
        (small_tree, tmp_path / "taken", "did not make it"),
        (small_tree, tmp_path / "taken" / "x" / "d", "taken/x"),
    ]
    for source, destination, words in cases:
        assert words in refused(capsys, "convert", "imagenet", source, destination)
    assert "imagenet2" in refused(capsys, "convert", "imagenet2", small_tree, tmp_path / "d")
    for options in ("--images 0", "--images 5 --classes 6", "--form zip", "--seed -1"):
        assert options.split()[-2] in refused(
            capsys, "generate", "imagenet", tmp_path / "d", *options.split()
        )
    assert ["empty", "taken"] == sorted(path.name for path in tmp_path.iterdir())


def test_a_bad_image_is_one_line_and_exit_code_1(capsys, tmp_path):
    """The work had begun, and the file is named with what to type."""
    source = tree(tmp_path / "source", {f"n01/{number}.JPEG": b"" for number in range(3)})
    line = refused(capsys, "convert", "imagenet", source, tmp_path / "d", "--workers", 1, code=1)
    assert "empty file; to leave such images out: --on-error quarantine" in line
    assert ["source"] == [path.name for path in tmp_path.iterdir()]
