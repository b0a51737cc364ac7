"""Data sets in the forms of other programs, each written by the form's own library, from one list
of images."""

import io
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import lmdb
import pytest

WNIDS: Final = ("n01440764", "n01443537", "n01484850")
DATA: Final = Path(__file__).parent / "data" / "foreign"


class Sample(NamedTuple):
    """One image."""

    name: str
    label: int
    data: bytes


def samples() -> list[Sample]:
    """Images that differ, of three classes, in an order that is not that of their names."""
    found = [
        Sample(path.name, WNIDS.index(path.name.partition("_")[0]), path.read_bytes())
        for path in (DATA / "images").iterdir()
    ]
    return sorted(found, key=lambda sample: int(sample.name[:-5].rpartition("_")[2]))


def write_webdataset(folder: Path, images: list[Sample]) -> None:
    """Shards with labels in .cls and .json."""
    webdataset = pytest.importorskip(
        "webdataset", reason="webdataset is not installed (pip install webdataset)"
    )
    with webdataset.ShardWriter(
        f"{folder}/imagenet-train-%03d.tar", maxcount=5, verbose=0
    ) as shards:
        for name, label, data in images:
            shards.write(
                {"__key__": name[:-5], "jpg": data, "cls": label, "json": {"wnid": WNIDS[label]}}
            )


def write_tar_of_folders(folder: Path, images: list[Sample]) -> None:
    """One tar of class folders, without any label."""
    with tarfile.open(folder / "everything.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for name, label, data in images:
            member = tarfile.TarInfo(f"./data/{WNIDS[label]}/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def write_tfrecord(folder: Path, images: list[Sample]) -> None:
    """Two files, named and labelled as TensorFlow's scripts for ImageNet do it: labels begin with
    1."""
    writer = pytest.importorskip(
        "tfrecord.writer", reason="tfrecord is not installed (pip install tfrecord)"
    )
    half = len(images) // 2
    for number, part in enumerate((images[:half], images[half:])):
        file = writer.TFRecordWriter(str(folder / f"train-{number:05d}-of-00002"))
        for name, label, data in part:
            file.write(
                {
                    "image/height": (48, "int"),
                    "image/class/synset": (WNIDS[label].encode(), "byte"),
                    "image/encoded": (data, "byte"),
                    "image/class/label": (label + 1, "int"),
                    "image/filename": (name.encode(), "byte"),
                }
            )
        file.close()


def _huggingface(images: list[Sample]) -> Any:
    datasets = pytest.importorskip(
        "datasets", reason="datasets is not installed (pip install datasets)"
    )
    columns = {
        "image": [{"bytes": data, "path": name} for name, _, data in images],
        "label": [label for _, label, _ in images],
    }
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(WNIDS))}
    )
    return datasets.Dataset.from_dict(columns, features=features)


def write_arrow(folder: Path, images: list[Sample]) -> None:
    """What `save_to_disk` writes."""
    _huggingface(images).save_to_disk(str(folder), num_shards=2)


def write_parquet(folder: Path, images: list[Sample]) -> None:
    """What `to_parquet` writes."""
    _huggingface(images).to_parquet(str(folder / "train-00000-of-00001.parquet"))


def _caffe_messages() -> tuple[Any, Any]:
    """Classes of Caffe's `Datum` and Caffe2's `TensorProtos`, by Google's own protobuf."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="caffe.proto", package="caffe", syntax="proto2")
    datum = file.message_type.add(name="Datum")
    for number, name, kind in (
        (1, "channels", kinds.TYPE_INT32),
        (2, "height", kinds.TYPE_INT32),
        (3, "width", kinds.TYPE_INT32),
        (4, "data", kinds.TYPE_BYTES),
        (5, "label", kinds.TYPE_INT32),
        (7, "encoded", kinds.TYPE_BOOL),
    ):
        datum.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    tensor = file.message_type.add(name="TensorProto")
    for number, name, kind in (
        (1, "dims", kinds.TYPE_INT64),
        (2, "data_type", kinds.TYPE_INT32),
        (4, "int32_data", kinds.TYPE_INT32),
        (6, "string_data", kinds.TYPE_BYTES),
    ):
        field = tensor.field.add(name=name, number=number, type=kind, label=kinds.LABEL_REPEATED)
        if name == "data_type":
            field.label = kinds.LABEL_OPTIONAL
        if name == "int32_data":
            field.options.packed = True
    protos = file.message_type.add(name="TensorProtos")
    protos.field.add(
        name="protos",
        number=1,
        type=kinds.TYPE_MESSAGE,
        type_name=".caffe.TensorProto",
        label=kinds.LABEL_REPEATED,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"caffe.{name}"))
        for name in ("Datum", "TensorProtos")
    ]
    return found[0], found[1]


def _write_lmdb(folder: Path, values: Iterator[tuple[bytes, bytes]]) -> None:
    with (
        lmdb.open(str(folder), map_size=1 << 26) as environment,
        environment.begin(write=True) as transaction,
    ):
        for key, value in values:
            transaction.put(key, value)


def write_caffe(folder: Path, images: list[Sample]) -> None:
    """As Caffe's `convert_imageset --encoded` does it."""
    datum, _ = _caffe_messages()
    values = (
        (
            f"{number:08d}_{WNIDS[label]}/{name}".encode(),
            datum(
                channels=3, height=48, width=64, data=data, label=label, encoded=True
            ).SerializeToString(),
        )
        for number, (name, label, data) in enumerate(images)
    )
    _write_lmdb(folder, values)


def write_caffe2(folder: Path, images: list[Sample]) -> None:
    """As Caffe2's `make_image_db --raw=false` does it."""
    _, protos = _caffe_messages()

    def value(label: int, data: bytes) -> bytes:
        message = protos()
        image, number = message.protos.add(), message.protos.add()
        image.data_type, number.data_type = 4, 2
        image.dims.append(1)
        image.string_data.append(data)
        number.dims.append(1)
        number.int32_data.append(label)
        encoded: bytes = message.SerializeToString()
        return encoded

    (folder / "train_lmdb").mkdir()
    _write_lmdb(
        folder / "train_lmdb",
        (
            (f"{place:08d}_{WNIDS[label]}/{name}".encode(), value(label, data))
            for place, (name, label, data) in enumerate(images)
        ),
    )


def copy_of(form: str) -> Callable[[Path, list[Sample]], None]:
    """What programs/write_foreign_data.py has written: of libraries that take long to load, or are
    hard to install."""

    def copy(folder: Path, _: list[Sample]) -> None:
        shutil.copytree(DATA / form, folder, dirs_exist_ok=True)

    return copy


WRITERS: Final[dict[str, Callable[[Path, list[Sample]], None]]] = {
    "webdataset": write_webdataset,
    "tar of folders": write_tar_of_folders,
    "tfrecord": write_tfrecord,
    "arrow": write_arrow,
    "parquet": write_parquet,
    "caffe": write_caffe,
    "caffe2": write_caffe2,
    "mds": copy_of("mds"),
    "litdata": copy_of("litdata"),
}
"""Form → what writes it."""
