"""Writes tests/data/foreign/FORM with the library of the form: write_foreign_data.py FORM
(recordio, mds or litdata).

Run by hand; it needs mxnet 1.9.1 with numpy 1.23.5, mosaicml-streaming 0.13.0 with torchvision, or
litdata 0.2.76.
"""

import sys
from pathlib import Path

DATA = Path(__file__).parents[1] / "data" / "foreign"
WNIDS = ("n01440764", "n01443537", "n01484850")
IMAGES = sorted((DATA / "images").iterdir(), key=lambda path: int(path.stem.rpartition("_")[2]))
LABELS = [WNIDS.index(path.name.partition("_")[0]) for path in IMAGES]
MAGIC = b"\x0a\x23\xd7\xce"


def write_recordio(folder: Path) -> None:
    """Six records: the fifth image holds the magic number twice, in a comment; the sixth has two
    labels."""
    import mxnet as mx

    folder.mkdir()
    writer = mx.recordio.MXIndexedRecordIO(
        str(folder / "train.idx"), str(folder / "train.rec"), "w"
    )
    for number, path in enumerate(IMAGES[:6]):
        data = path.read_bytes()
        if number == 4:
            data = data[:2] + b"\xff\xfe\x00\x0c\0\0" + 2 * MAGIC + data[2:]
        labels = [2.0, 7.0] if number == 5 else float(number % 3)
        header = mx.recordio.IRHeader(2 if number == 5 else 0, labels, number, 0)
        writer.write_idx(number, mx.recordio.pack(header, data))
    writer.close()


def write_mds(folder: Path) -> None:
    """Two shards."""
    from streaming import MDSWriter

    with MDSWriter(
        out=str(folder),
        columns={"name": "str", "image": "bytes", "label": "int"},
        size_limit=1 << 14,
    ) as writer:
        for path, label in zip(IMAGES, LABELS, strict=True):
            writer.write({"name": path.name, "image": path.read_bytes(), "label": label})


def sample(number: int) -> dict[str, object]:
    """One sample of LitData; a JPEG is stored as it is."""
    from PIL import Image

    return {"image": Image.open(IMAGES[number]), "label": LABELS[number]}


def write_litdata(folder: Path) -> None:
    """Two chunks."""
    import litdata

    litdata.optimize(
        sample, list(range(len(IMAGES))), output_dir=str(folder), chunk_bytes="16KB", num_workers=1
    )


if __name__ == "__main__":
    {"recordio": write_recordio, "mds": write_mds, "litdata": write_litdata}[sys.argv[1]](
        DATA / sys.argv[1]
    )
