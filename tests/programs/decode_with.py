"""Decodes real data with many libraries: in a DataLoader's worker, in a thread, and in the main
thread.

    python decode_with.py make FOLDER        writes data for all libraries that are installed
    python decode_with.py run FOLDER OUT     decodes it, and writes to OUT for each library and
                                             place: process and thread, the time that its own
                                             stopwatch measured around the calls, and a digest of
                                             all that was decoded

The libraries are imported before the worker is forked, as a job does, and used by the worker first.
"""

import gzip
import hashlib
import importlib
import io
import json
import os
import sys
import threading
import time
import wave
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from ioprof import span

ITEMS = 6
Decoded = Iterable[Any]


class Stopwatch:
    """Sums the time of the calls that it makes."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        start_ns = time.perf_counter_ns()
        try:
            return function(*args, **kwargs)
        finally:
            self.ns += time.perf_counter_ns() - start_ns

    def items(self, items: Iterator[Any]) -> Iterator[Any]:
        """The items, timed within next() only."""
        while (item := self(next, items, None)) is not None:
            time.sleep(0.001)  # what the user does with it
            yield item


def pixels(number: int, side: int = 400) -> np.ndarray[Any, Any]:
    """A picture with some structure."""
    rows, columns = np.mgrid[0:side, 0:side]
    noise = np.random.default_rng(number).integers(0, 40, (side, side, 3))
    waves = 100 + 60 * np.sin((rows + 7 * number) / 9) + 40 * np.cos(columns / 13)
    return np.clip(waves[..., None] + noise, 0, 255).astype(np.uint8)


def table() -> dict[str, Any]:
    """Columns with numbers and texts."""
    choice = np.random.default_rng(0)
    return {
        "number": choice.integers(0, 1000, 100_000),
        "value": choice.random(100_000).round(3),
        "text": [f"sample {number % 977} of many" for number in range(100_000)],
    }


def text_of(count: int) -> str:
    """Some text."""
    return " ".join(f"word{number * 7919 % 613} and {number % 97}" for number in range(count))


# ------------------------------------------------------------------------------------------ data


def make_images(folder: Path) -> None:
    """JPEG files."""
    from PIL import Image

    for number in range(ITEMS):
        Image.fromarray(pixels(number)).save(folder / f"{number}.jpg", quality=90)


def make_video(folder: Path) -> None:
    """A video of 24 frames."""
    import av

    with av.open(str(folder / "video.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=24)
        stream.width = stream.height = 400
        for number in range(24):
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels(number), format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def make_sound(folder: Path) -> None:
    """FLAC and WAV, ten seconds."""
    import soundfile

    sound = 0.3 * np.sin(np.arange(441_000) / 30) + 0.05 * np.random.default_rng(0).standard_normal(
        441_000
    )
    soundfile.write(folder / "sound.flac", sound, 44_100)
    with wave.open(str(folder / "sound.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(44_100)
        file.writeframes((sound * 20_000).astype(np.int16).tobytes())


def make_arrow(folder: Path) -> None:
    """Parquet and Arrow files."""
    import pyarrow as pa
    import pyarrow.feather
    import pyarrow.parquet

    data = pa.table(table())
    pa.parquet.write_table(
        data, folder / "table.parquet", compression="zstd", row_group_size=20_000
    )
    pa.feather.write_feather(data, folder / "table.feather", compression="zstd")


def make_csv(folder: Path) -> None:
    """A table as text."""
    data = table()
    rows = zip(*data.values(), strict=True)
    (folder / "table.csv").write_text(
        "\n".join([",".join(data), *(",".join(map(str, row)) for row in rows)])
    )


def make_arrays(folder: Path) -> None:
    """NumPy's own files, compressed or not."""
    values = {"a": pixels(0, 600).astype(np.float32), "b": pixels(1, 600)}
    np.savez_compressed(folder / "arrays.npz", **values)
    np.save(folder / "array.npy", np.tile(values["a"], 4))


def make_hdf5(folder: Path) -> None:
    """A chunked, compressed dataset."""
    import h5py

    with h5py.File(folder / "data.h5", "w") as file:
        file.create_dataset(
            "x",
            data=np.stack([pixels(number) for number in range(ITEMS)]),
            chunks=(1, 400, 400, 3),
            compression=4,
        )


def make_zarr(folder: Path) -> None:
    """The same as zarr."""
    import zarr

    array = zarr.open(
        str(folder / "data.zarr"),
        mode="w",
        shape=(ITEMS, 400, 400, 3),
        chunks=(1, 400, 400, 3),
        dtype="u1",
    )
    for number in range(ITEMS):
        array[number] = pixels(number)


def make_tensors(folder: Path) -> None:
    """Tensors, by torch and as safetensors."""
    tensors = {
        f"layer {number}": torch.randn(600, 600, generator=torch.Generator().manual_seed(number))
        for number in range(ITEMS)
    }
    torch.save(tensors, folder / "tensors.pt")
    from safetensors.torch import save_file

    save_file(tensors, folder / "tensors.safetensors")


def make_tokenizer(folder: Path) -> None:
    """A tokenizer trained on the text that it will split."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(
        [text_of(500)],
        trainers.BpeTrainer(vocab_size=300, special_tokens=["?"], show_progress=False),
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def make_compressed(folder: Path) -> None:
    """Compressed text, by the standard library."""
    import bz2
    import lzma

    data = text_of(20_000).encode()
    for name, compress in {
        "gz": gzip.compress,
        "bz2": bz2.compress,
        "xz": lzma.compress,
        "z": zlib.compress,
    }.items():
        (folder / f"text.{name}").write_bytes(compress(data))


MAKERS = (
    make_images,
    make_video,
    make_sound,
    make_arrow,
    make_csv,
    make_arrays,
    make_hdf5,
    make_zarr,
    make_tensors,
    make_tokenizer,
    make_compressed,
)

# ----------------------------------------------------------------------------------------- decoders


def opencv(folder: Path, watch: Stopwatch) -> Decoded:
    """Images from memory and from files."""
    import cv2

    for number in range(ITEMS):
        data = np.frombuffer((folder / f"{number}.jpg").read_bytes(), np.uint8)
        yield watch(cv2.imdecode, data, cv2.IMREAD_COLOR)
        yield watch(cv2.imread, str(folder / f"{number}.jpg"))


def opencv_video(folder: Path, watch: Stopwatch) -> Decoded:
    """A video, frame by frame."""
    import cv2

    capture = cv2.VideoCapture(str(folder / "video.mp4"))
    while (got := watch(capture.read))[0]:
        yield got[1]


def torchvision(folder: Path, watch: Stopwatch) -> Decoded:
    """Images from memory and from files."""
    from torchvision import io as images

    for number in range(ITEMS):
        yield watch(images.decode_jpeg, images.read_file(str(folder / f"{number}.jpg")))
        yield watch(images.read_image, str(folder / f"{number}.jpg"))


def torchcodec(folder: Path, watch: Stopwatch) -> Decoded:
    """A video, frame by frame and by slices; sound."""
    from torchcodec.decoders import AudioDecoder, VideoDecoder

    decoder = watch(VideoDecoder, str(folder / "video.mp4"))
    for number in range(12):
        yield watch(decoder.__getitem__, number)
    yield watch(decoder.get_frames_in_range, 12, 24).data
    yield watch(watch(AudioDecoder, str(folder / "sound.flac")).get_all_samples).data


def simplejpeg(folder: Path, watch: Stopwatch) -> Decoded:
    """Images from memory."""
    import simplejpeg

    for number in range(ITEMS):
        yield watch(simplejpeg.decode_jpeg, (folder / f"{number}.jpg").read_bytes())


def turbojpeg(folder: Path, watch: Stopwatch) -> Decoded:
    """Images from memory."""
    from turbojpeg import TurboJPEG

    decoder = TurboJPEG()
    for number in range(ITEMS):
        yield watch(decoder.decode, (folder / f"{number}.jpg").read_bytes())


def imageio(folder: Path, watch: Stopwatch) -> Decoded:
    """Images by both of its interfaces."""
    import imageio.v2
    import imageio.v3

    for number in range(ITEMS):
        yield watch(imageio.v3.imread, folder / f"{number}.jpg")
        yield watch(imageio.v2.imread, folder / f"{number}.jpg")
    yield from watch.items(watch(imageio.v3.imiter, folder / "0.jpg"))


def pyav(folder: Path, watch: Stopwatch) -> Decoded:
    """A video by both of its ways, and as arrays."""
    import av

    with av.open(str(folder / "video.mp4")) as container:
        for frame in watch.items(watch(container.decode, video=0)):
            yield watch(frame.to_ndarray, format="rgb24")
    with av.open(str(folder / "video.mp4")) as container:
        for packet in container.demux(video=0):
            for frame in watch(packet.decode):
                yield frame.pts


def soundfile(folder: Path, watch: Stopwatch) -> Decoded:
    """Sound as a whole, and in blocks."""
    import soundfile

    yield watch(soundfile.read, folder / "sound.flac")[0]
    with soundfile.SoundFile(folder / "sound.flac") as file:
        while len(block := watch(file.read, 44_100)):
            yield block


def pyarrow(folder: Path, watch: Stopwatch) -> Decoded:
    """Parquet as a whole, by row group and by batch; a dataset; Arrow's own files; conversions."""
    import pyarrow as pa
    import pyarrow.dataset
    import pyarrow.feather
    import pyarrow.parquet

    path = str(folder / "table.parquet")
    data = watch(pa.parquet.read_table, path)
    yield watch(data.to_pandas)["value"].to_numpy()
    yield watch(data.slice(0, 5000).to_pylist)
    with pa.parquet.ParquetFile(path) as file:
        yield watch(file.read_row_group, 1)["number"].to_numpy()
        yield from (
            batch["number"].to_numpy() for batch in watch.items(watch(file.iter_batches, 10_000))
        )
    dataset = pa.dataset.dataset(path)
    yield watch(dataset.to_table, columns=["value"])["value"].to_numpy()
    yield from (
        watch(batch.to_pylist)[:3]
        for batch in watch.items(watch(dataset.to_batches, columns=["text"]))
    )
    with pa.ipc.open_file(str(folder / "table.feather")) as arrow:
        yield from (
            watch(arrow.get_batch, place)["value"].to_numpy()
            for place in range(arrow.num_record_batches)
        )
    yield watch(pa.feather.read_table, str(folder / "table.feather"))["number"].to_numpy()


def pandas(folder: Path, watch: Stopwatch) -> Decoded:
    """Tables of two formats."""
    import pandas as pd

    yield watch(pd.read_parquet, folder / "table.parquet")["value"].to_numpy()
    yield watch(pd.read_csv, folder / "table.csv")["number"].to_numpy()
    with watch(pd.read_csv, folder / "table.csv", chunksize=20_000) as chunks:
        yield from (chunk["number"].to_numpy() for chunk in watch.items(iter(chunks)))


def polars(folder: Path, watch: Stopwatch) -> Decoded:
    """Tables of two formats."""
    import polars as pl

    yield watch(pl.read_parquet, folder / "table.parquet")["value"].to_numpy()
    yield watch(pl.read_csv, folder / "table.csv")["number"].to_numpy()


def numpy(folder: Path, watch: Stopwatch) -> Decoded:
    """Arrays of both formats."""
    with watch(np.load, folder / "arrays.npz") as file:
        yield watch(file.__getitem__, "a")
        yield watch(file.__getitem__, "b")
    yield watch(np.load, folder / "array.npy")


def h5py(folder: Path, watch: Stopwatch) -> Decoded:
    """Chunks."""
    import h5py

    with h5py.File(folder / "data.h5") as file:
        yield from (watch(file["x"].__getitem__, number) for number in range(ITEMS))
        whole = np.empty((ITEMS, 400, 400, 3), np.uint8)
        watch(file["x"].read_direct, whole)
        yield whole


def zarr(folder: Path, watch: Stopwatch) -> Decoded:
    """Chunks."""
    import zarr

    array = zarr.open(str(folder / "data.zarr"), mode="r")
    yield from (watch(array.__getitem__, number) for number in range(ITEMS))


def safetensors(folder: Path, watch: Stopwatch) -> Decoded:
    """Tensors one by one, and all."""
    from safetensors import safe_open
    from safetensors.torch import load_file

    with safe_open(folder / "tensors.safetensors", "pt") as file:
        for name in sorted(file.keys()):
            yield watch(file.get_tensor, name)
    yield from watch(load_file, folder / "tensors.safetensors").values()


def torch_load(folder: Path, watch: Stopwatch) -> Decoded:
    """A checkpoint."""
    yield from watch(torch.load, folder / "tensors.pt").values()


def tokenizers(folder: Path, watch: Stopwatch) -> Decoded:
    """Texts, many and one by one."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [text_of(300 + number) for number in range(20)]
    yield [found.ids for found in watch(tokenizer.encode_batch, texts)]
    yield from (watch(tokenizer.encode, text).ids for text in texts)


def transformers(folder: Path, watch: Stopwatch) -> Decoded:
    """Texts through the usual class."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    for number in range(ITEMS):
        yield watch(tokenizer, [text_of(300 + number)] * 4)["input_ids"]


def zstandard(folder: Path, watch: Stopwatch) -> Decoded:
    """As a whole, and as a stream."""
    import zstandard

    data = text_of(200_000).encode()
    packed = zstandard.compress(data)
    decompressor = zstandard.ZstdDecompressor()
    yield watch(decompressor.decompress, packed)
    with decompressor.stream_reader(io.BytesIO(packed)) as reader:
        while block := watch(reader.read, 1 << 16):
            yield block


def lz4(folder: Path, watch: Stopwatch) -> Decoded:
    """As a whole, and in blocks."""
    import lz4.block
    import lz4.frame

    data = text_of(200_000).encode()
    yield watch(lz4.frame.decompress, lz4.frame.compress(data))
    yield watch(lz4.block.decompress, lz4.block.compress(data))


def standard(folder: Path, watch: Stopwatch) -> Decoded:
    """What Python comes with."""
    import bz2
    import lzma

    yield watch(zlib.decompress, (folder / "text.z").read_bytes())
    decompressor = zlib.decompressobj()
    yield watch(decompressor.decompress, (folder / "text.z").read_bytes())
    for opener, name in ((gzip.open, "text.gz"), (bz2.open, "text.bz2"), (lzma.open, "text.xz")):
        with opener(folder / name) as file:
            yield watch(file.read)
    for module, name in ((gzip, "text.gz"), (bz2, "text.bz2"), (lzma, "text.xz")):
        yield watch(module.decompress, (folder / name).read_bytes())


DECODERS = {
    "cv2": opencv,
    "cv2 video": opencv_video,
    "torchvision": torchvision,
    "torchcodec": torchcodec,
    "simplejpeg": simplejpeg,
    "turbojpeg": turbojpeg,
    "imageio": imageio,
    "av": pyav,
    "soundfile": soundfile,
    "pyarrow": pyarrow,
    "pandas": pandas,
    "polars": polars,
    "numpy": numpy,
    "h5py": h5py,
    "zarr": zarr,
    "safetensors": safetensors,
    "torch": torch_load,
    "tokenizers": tokenizers,
    "transformers": transformers,
    "zstandard": zstandard,
    "lz4": lz4,
    "zlib": standard,
}
"""By the module that must be there, which is the first word."""

# ------------------------------------------------------------------------------------------ the job


def plain(value: Any) -> bytes:
    """What was decoded, as bytes."""
    if isinstance(value, np.ndarray | torch.Tensor):
        return np.asarray(value).tobytes()
    return repr(value).encode()


def use(library: str, folder: Path) -> dict[str, Any]:
    """Decode all that a library has."""
    watch, digest = Stopwatch(), hashlib.sha256()
    with span("use", library):
        for value in DECODERS[library](folder, watch):
            digest.update(plain(value))
    return {
        "pid": os.getpid(),
        "tid": threading.get_native_id(),
        "ns": watch.ns,
        "digest": digest.hexdigest(),
    }


class Libraries(Dataset[str]):
    """An item is all that a library has decoded."""

    def __init__(self, names: list[str], folder: Path) -> None:
        self.names, self.folder = names, folder

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: int) -> str:
        return json.dumps(use(self.names[number], self.folder))


def installed(name: str) -> bool:
    """Whether the module can be imported, which it is."""
    try:
        importlib.import_module(name.partition(" ")[0])
    except Exception:  # some need libraries of the system
        return False
    return True


def main() -> None:
    """One command."""
    command, folder = sys.argv[1], Path(sys.argv[2])
    if command == "make":
        for make in MAKERS:
            try:
                make(folder)
            except ImportError as error:
                print(f"{make.__name__}: {error}")
        return
    wanted = sys.argv[4:] or DECODERS
    names = [name for name in wanted if installed(name)]
    torch.set_num_threads(1)
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for name, item in zip(
        names, DataLoader(Libraries(names, folder), batch_size=None, num_workers=1), strict=True
    ):
        found[name]["worker"] = json.loads(item)
    for name in names:
        thread = threading.Thread(
            target=lambda name=name: found[name].update(thread=use(name, folder))
        )
        thread.start()
        thread.join()
        found[name]["main"] = use(name, folder)
    Path(sys.argv[3]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
