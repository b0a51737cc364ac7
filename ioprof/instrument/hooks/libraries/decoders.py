"""Observes decoders of many libraries: what turns the bytes of a file or of a message into arrays,
tables, tensors or tokens.

Their calls are `decode` spans, named for library and function. A decoder that also reads the file
is one all the same: reads within it are spans of their own, and count as reads. A decoder that
another one calls in the same thread is part of that one. What each library has, and what is not
observed, stands in docs/decoders.md.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from ioprof.instrument.hooks import observers
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState

FUNCTIONS: Final = {
    "cv2": (
        "imdecode",
        "imdecodemulti",
        "imdecodeanimation",
        "imdecodeWithMetadata",
        "imread",
        "imreadmulti",
        "imreadanimation",
        "imreadWithMetadata",
        "VideoCapture.read",
        "VideoCapture.grab",
        "VideoCapture.retrieve",
        "VideoCapture.set",
    ),
    "torchvision.io.image": (
        "decode_image",
        "decode_jpeg",
        "decode_png",
        "decode_gif",
        "decode_webp",
        "decode_avif",
        "decode_heic",
        "read_image",
    ),
    "torchvision.io.video": ("read_video", "read_video_timestamps"),
    "torchvision.io.video_reader": ("VideoReader.__next__",),
    "torchcodec.decoders._video_decoder": (
        "VideoDecoder.__init__",
        "VideoDecoder.__getitem__",
        "VideoDecoder.get_frame_at",
        "VideoDecoder.get_frames_at",
        "VideoDecoder.get_frames_in_range",
        "VideoDecoder.get_frame_played_at",
        "VideoDecoder.get_frames_played_at",
        "VideoDecoder.get_frames_played_in_range",
        "VideoDecoder.get_all_frames",
    ),
    "torchcodec.decoders._audio_decoder": (
        "AudioDecoder.__init__",
        "AudioDecoder.get_all_samples",
        "AudioDecoder.get_samples_played_in_range",
    ),
    "simplejpeg": ("decode_jpeg",),
    "turbojpeg": ("TurboJPEG.decode", "TurboJPEG.decode_to_yuv", "TurboJPEG.decode_to_yuv_planes"),
    "imageio.v2": ("imread", "mimread", "volread", "mvolread"),
    "imageio.v3": ("imread",),
    "imageio.core.legacy_plugin_wrapper": ("LegacyPlugin.read",),
    "imageio.core.format": ("Format.Reader.get_data", "Format.Reader.get_next_data"),
    "imageio.plugins.pillow": ("PillowPlugin.read",),
    "imageio.plugins.pyav": ("PyAVPlugin.read",),
    "av.packet": ("Packet.decode",),
    "av.codec.context": ("CodecContext.decode",),
    "av.video.stream": ("VideoStream.decode",),
    "av.video.frame": (
        "VideoFrame.to_ndarray",
        "VideoFrame.to_rgb",
        "VideoFrame.to_image",
        "VideoFrame.reformat",
    ),
    "av.video.reformatter": ("VideoReformatter.reformat",),
    "av.audio.stream": ("AudioStream.decode",),
    "av.audio.frame": ("AudioFrame.to_ndarray",),
    "soundfile": ("read", "SoundFile.read", "SoundFile.buffer_read", "SoundFile.buffer_read_into"),
    "numpy.lib._npyio_impl": ("load", "loadtxt", "genfromtxt", "fromregex", "NpzFile.__getitem__"),
    "numpy.lib.npyio": ("load", "loadtxt", "genfromtxt", "fromregex", "NpzFile.__getitem__"),
    "h5py._hl.dataset": (
        "Dataset.__getitem__",
        "Dataset.__array__",
        "Dataset.read_direct",
        "ChunkIterator.__next__",
    ),
    "zarr.core": (
        "Array.__getitem__",
        "Array.get_basic_selection",
        "Array.get_orthogonal_selection",
        "Array.get_coordinate_selection",
        "Array.get_mask_selection",
        "Array.get_block_selection",
    ),
    "zarr.core.array": (
        "Array.__getitem__",
        "Array.__array__",
        "Array.get_basic_selection",
        "Array.get_orthogonal_selection",
        "Array.get_coordinate_selection",
        "Array.get_mask_selection",
        "Array.get_block_selection",
    ),
    "pyarrow.parquet.core": (
        "ParquetFile.read",
        "ParquetFile.read_row_group",
        "ParquetFile.read_row_groups",
        "ParquetFile.scan_contents",
        "ParquetDataset.read",
        "read_table",
    ),
    "pyarrow.feather": ("read_table", "read_feather"),
    "pyarrow.orc": ("ORCFile.read", "ORCFile.read_stripe"),
    "pyarrow.csv": ("read_csv",),
    "pyarrow.json": ("read_json",),
    "pyarrow.lib": (
        "RecordBatchReader.read_next_batch",
        "RecordBatchReader.read_next_batch_with_custom_metadata",
        "RecordBatchReader.read_all",
        "_RecordBatchFileReader.get_batch",
        "_RecordBatchFileReader.get_batch_with_custom_metadata",
        "_RecordBatchFileReader.read_all",
        "_PandasConvertible.to_pandas",
        "_Tabular.to_pylist",
        "_Tabular.to_pydict",
        "Array.to_pylist",
        "ChunkedArray.to_pylist",
        "Codec.decompress",
        "decompress",
    ),
    "pyarrow._dataset": (
        "Dataset.to_table",
        "Dataset.head",
        "Dataset.take",
        "Fragment.to_table",
        "Fragment.head",
        "Fragment.take",
        "Scanner.to_table",
        "Scanner.head",
        "Scanner.take",
    ),
    "pandas.io.parquet": ("read_parquet",),
    "pandas.io.feather_format": ("read_feather",),
    "pandas.io.orc": ("read_orc",),
    "pandas.io.parsers.readers": ("read_csv", "read_table", "read_fwf", "TextFileReader.read"),
    "pandas.io.json._json": ("read_json", "JsonReader.read", "JsonReader.__next__"),
    "pandas.io.pickle": ("read_pickle",),
    "pandas.io.pytables": ("read_hdf", "HDFStore.select"),
    "polars.io.parquet.functions": ("read_parquet",),
    "polars.io.csv.functions": ("read_csv",),
    "polars.io.ipc.functions": ("read_ipc", "read_ipc_stream"),
    "polars.io.json.read": ("read_json",),
    "polars.io.ndjson": ("read_ndjson",),
    "tokenizers": ("Tokenizer.encode", "Tokenizer.encode_batch", "Tokenizer.encode_batch_fast"),
    "transformers.tokenization_utils_base": (
        "PreTrainedTokenizerBase.__call__",
        "PreTrainedTokenizerBase.encode",
        "PreTrainedTokenizerBase.encode_plus",
        "PreTrainedTokenizerBase.batch_encode_plus",
        "PreTrainedTokenizerBase.apply_chat_template",
    ),
    "safetensors": ("safe_open.get_tensor", "safe_open.get_tensors", "deserialize"),
    "safetensors.torch": ("load", "load_file"),
    "safetensors.numpy": ("load", "load_file"),
    "torch.serialization": ("load",),
    "zlib": ("decompress",),
    "gzip": ("decompress", "_GzipReader.read"),
    "bz2": ("decompress",),
    "lzma": ("decompress",),
    "_compression": ("DecompressReader.read",),
    "compression._common._streams": ("DecompressReader.read",),
    "compression.zstd": ("decompress",),
    "zstandard": (
        "decompress",
        "ZstdDecompressor.decompress",
        "ZstdDecompressor.copy_stream",
        "ZstdDecompressionReader.read",
        "ZstdDecompressionReader.read1",
        "ZstdDecompressionReader.readinto",
        "ZstdDecompressionReader.readall",
    ),
    "lz4.frame": ("decompress", "decompress_chunk", "LZ4FrameDecompressor.decompress"),
    "lz4.block": ("decompress",),
}
"""Decoders by the module that defines them, under all the names that they have had: what a version
lacks is left out."""

ITERATORS: Final = {
    "av.container.input": ("InputContainer.decode",),
    "imageio.v3": ("imiter",),
    "imageio.plugins.pillow": ("PillowPlugin.iter",),
    "imageio.plugins.pyav": ("PyAVPlugin.iter",),
    "pyarrow.parquet.core": ("ParquetFile.iter_batches",),
    "pyarrow._dataset": ("Dataset.to_batches", "Fragment.to_batches", "Scanner.to_batches"),
    "zstandard": ("ZstdDecompressor.read_to_iter",),
}
"""The same of functions that return an iterator: the time within its `next()` is decoding, the time
between two calls is not."""

TYPES: Final = {"zlib": ("decompressobj",)}
"""Functions whose result is of a type that the module does not show, with a method `decompress`."""

OPTIONAL: Final = ("numpy.lib.npyio", "zarr.core")
"""Modules that define decoders in some versions, and exist without them in others."""

LIBRARIES: Final = {"_compression": "bz2/lzma"}
"""The name of the library in that of a span, where it is not that of the module."""


def observe(module: ModuleType, state: HookState) -> None:
    """Observe a module of the tables. Raises AttributeError where it has nothing of what they
    name.
    """
    library = module.__name__.partition(".")[0]
    shown = LIBRARIES.get(library, library)
    num_found = sum(
        _observe_function(module, name, shown, observers.decoding, state)
        for name in FUNCTIONS.get(module.__name__, ())
    )
    num_found += sum(
        _observe_function(module, name, shown, observers.decoding_items, state)
        for name in ITERATORS.get(module.__name__, ())
    )
    for name in TYPES.get(module.__name__, ()):
        num_found += _observe_function(
            type(getattr(module, name)()),
            "decompress",
            f"{shown}.{name}",
            observers.decoding,
            state,
        )
    if num_found == 0 and module.__name__ not in OPTIONAL:
        raise AttributeError("none of the decoders that are known is there")


def _observe_function(
    module: Any,
    path: str,
    library: str,
    observer: Callable[[Function, str], Function],
    state: HookState,
) -> bool:
    """Observe a function or a method, if the module has it; whether it has."""
    *classes, name = path.split(".")
    owner = module
    for place in classes:
        owner = getattr(owner, place, None)
    original = vars(owner).get(name) if owner is not None else None
    if original is None:
        return False
    shown = f"{library}.{path}"
    if isinstance(original, staticmethod | classmethod):
        state.patches.put(owner, name, type(original)(observer(original.__func__, shown)))
    else:
        state.patches.wrap(owner, name, lambda function: observer(function, shown))
    return True
