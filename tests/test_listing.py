"""The list of a source's images: sorted, in files without names, and nothing in memory."""

import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from images import jpeg
from made_datasets import tree
from strategies import examples

from ioprof.converters.sources import listing
from ioprof.converters.sources.listing import Lines, ListingWriter, StoredNumbers
from ioprof.converters.sources.source_image import SourceImage
from ioprof.converters.sources.source_kinds import open_source
from ioprof.errors import CommandError

NAMES = st.text(
    st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters="/"),
    min_size=1,
    max_size=20,
)
PLACES = st.tuples(
    NAMES, st.integers(0, 2**62), st.none() | st.integers(0, 2**62), st.integers(0, 2**31)
)
CLASSES = st.dictionaries(NAMES, st.dictionaries(NAMES, PLACES, max_size=6), max_size=6)


def written(
    classes: dict[str, dict[str, tuple[str, int, int | None, int]]], mixed: bool = False
) -> ListingWriter:
    writer = ListingWriter("parquet")
    images = {
        wnid: [SourceImage(wnid, name, *at[:3], "parquet", at[3]) for name, at in found.items()]
        for wnid, found in classes.items()
    }
    if mixed:
        writer.add(image for found in images.values() for image in found)
    else:
        for wnid, found in images.items():
            writer.add_class(wnid, found)
    return writer


@given(classes=CLASSES, mixed=st.booleans(), block=st.integers(1, 7))
def test_a_listing_holds_what_was_written(classes, mixed, block):
    """By wnid and name, by index and by iteration, for any input order, and across the ends of
    blocks."""
    expected = [
        SourceImage(wnid, name, *at[:3], "parquet", at[3])
        for wnid, found in sorted(classes.items())
        for name, at in sorted(found.items())
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "_BLOCK_LINES", block)
        found = written(classes, mixed).finish()
        assert expected == list(found)
    assert expected == [found[number] for number in range(len(found))]
    assert tuple(sorted(wnid for wnid, images in classes.items() if images)) == found.wnids
    assert {image.place for image in expected} == set(found.places)
    assert sum(image.size or 0 for image in expected) == found.num_bytes


@given(
    lines=st.lists(st.binary(max_size=40), max_size=30), buffer=st.integers(1, 100), data=st.data()
)
def test_lines_are_kept_as_they_are(lines, buffer, data):
    """Any content, flushed any number of times; later lines do not change earlier ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "_BUFFER_BYTES", buffer)
        kept = Lines()
        for number, line in enumerate(lines):
            kept.append(line)
            place = data.draw(st.integers(0, number))
            assert lines[place] == kept[place]
        first = data.draw(st.integers(0, len(lines)))
        assert lines[first:] == kept.block(first, len(lines) - first)


@given(
    numbers=st.lists(st.integers(0, 2**32 - 1), max_size=30),
    block=st.integers(1, 7),
    data=st.data(),
)
def test_numbers_are_kept_as_they_are(numbers, block, data):
    """Any of them, from any place on, across the ends of blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "_BLOCK_NUMBERS", block)
        kept = StoredNumbers(np.array(numbers, np.uint32))
        start = data.draw(st.integers(0, len(numbers)))
        stop = data.draw(st.integers(start, len(numbers)))
        assert numbers[start:stop] == list(kept.between(start, stop))
    assert len(numbers) == len(kept)


@settings(max_examples=examples(30))
@given(classes=CLASSES, others=CLASSES)
def test_the_fingerprint_is_that_of_names_and_places_in_archives(classes, others):
    """The same for the same source elsewhere; another as soon as a name, an offset or a size is."""

    def elsewhere(
        found: dict[str, tuple[str, int, int | None, int]],
    ) -> dict[str, tuple[str, int, int | None, int]]:
        return {name: (f"/moved/{at[0]}", *at[1:]) for name, at in found.items()}

    moved = {wnid: elsewhere(found) for wnid, found in classes.items()}
    print_of = written(classes).finish().fingerprint()
    assert print_of == written(moved).finish().fingerprint()

    def facts(of: dict[str, dict[str, tuple[str, int, int | None, int]]]) -> object:
        return {
            wnid: {name: at[1:] for name, at in found.items()}
            for wnid, found in of.items()
            if found
        }

    if facts(classes) != facts(others):
        assert print_of != written(others).finish().fingerprint()


def test_images_take_no_memory():
    """Fifty thousand take only a few bytes more than five thousand: the list is stored in files."""
    kept = {}
    for images in (5_000, 50_000):
        tracemalloc.start()
        source = open_source(Path(f"synthetic:{images}"), "train")
        order = source.order(0)
        kept[images] = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert images == len(source.images) == len(order)
    assert (kept[50_000] - kept[5_000]) / 45_000 < 1


@pytest.mark.system
def test_a_full_folder_for_temporary_files_is_one_line(tmp_path, small_disk, monkeypatch):
    """What to set, and exit code 1; the same where there is no such folder."""
    source = tree(
        tmp_path / "source", {f"n01/{'x' * 200}{number}.JPEG": jpeg() for number in range(50)}
    )
    for folder in (small_disk(4096), tmp_path / "missing"):
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        with pytest.raises(
            CommandError, match=r"the list of images cannot be written.*TMPDIR="
        ) as refusal:
            len([image.name for image in open_source(source, "train").images])
        assert 1 == refusal.value.exit_code


def test_the_order_is_the_same_for_ever():
    """A dataset that is made again must be the same: the first of 2,000 images in the order of seed
    0, as ioprof 0.1 had them."""
    source = open_source(Path("synthetic:2000"), "train")
    names = [source.images[number].name for number in source.order(0).between(0, 4)]
    assert [
        "n00000003_405.JPEG",
        "n00000006_1190.JPEG",
        "n00000006_1132.JPEG",
        "n00000004_731.JPEG",
    ] == names
