"""Hooks into the libraries of a job: they observe data loaders, decoders, optimizers and collectives, and change nothing.
One of them, `made_loaders`, changes arguments of a loader in a job whose environment asks for it, which `ioprof prove` alone does.

Each module here knows one library and has `observe(module, state)`. `WATCHED` says which modules of libraries it observes, right
after they were executed; one that the job never imports is never imported here. Whatever an `observe` raises is recorded as a fact:
the job goes on without that hook.
"""

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from ioprof.instrument.hooks.imports import Watch

if TYPE_CHECKING:
    from ioprof.instrument.hooks.state import HookState

WATCHED: Final = {
    "multiprocessing.util": "forks",
    "threading": "thread_names",
    "torch.utils.data.dataloader": "consumer",
    "torch.utils.data._utils.worker": "worker",
    "torch.utils.data._utils.fetch": "fetcher",
    "torch.utils.data._utils.pin_memory": "pinning",
    "torch.nn.modules.module": "modules",
    "torch.optim.optimizer": "training",
    "torch.autograd": "training",
    "torch._dynamo.callback": "compilations",
    "torch.serialization": "checkpoints decoders",
    "torch.distributed.checkpoint.state_dict_saver": "checkpoints",
    "torch.distributed.checkpoint.state_dict_loader": "checkpoints",
    "safetensors.torch": "checkpoints decoders",
    "torch.distributed.distributed_c10d": "collectives messages",
    "torch.nn.parallel.distributed": "gradients",
    "torch.distributed.pipelining.schedules": "pipelining",
    "torch.distributed.fsdp._fully_shard._fsdp_state": "sharding",
    "torchvision.transforms.transforms": "transforms",
    "torchvision.transforms.v2._container": "transforms",
    "albumentations.core.composition": "transforms",
    "PIL.Image": "transforms",
    "PIL.ImageFile": "pillow",
    "cv2": "opencv",
    "torchvision.io.image": "decoders",
    "nvidia.dali.plugin.pytorch": "dali",
    "nvidia.dali.pipeline": "dali",
    "nvidia.dali.experimental.dynamic._ops": "dali_dynamic",
    "nvidia.dali.experimental.dynamic._invocation": "dali_dynamic",
    "nvidia.dali.experimental.dynamic._capture": "dali_dynamic",
    "torchdata.stateful_dataloader.stateful_dataloader": "stateful_loader",
    "torchdata.stateful_dataloader.worker": "stateful_loader",
    "spdl.pipeline._pipeline": "spdl",
    "spdl.pipeline._iter_utils._common": "spdl",
    "spdl.pipeline._iter_utils._subprocess": "spdl",
    "concurrent.futures._base": "futures",
    "concurrent.futures.thread": "futures",
    "concurrent.futures.process": "process_executors",
    "loky.process_executor": "process_executors",
    "joblib.externals.loky.process_executor": "process_executors",
    "joblib.parallel": "joblib_parallel",
    "queue": "queues",
    "multiprocessing.pool": "process_pools",
    "webdataset.shardlists": "webdataset_shards",
    "webdataset.filters": "webdataset_pipelines",
    "webdataset.tariterators": "webdataset_pipelines",
    "webdataset.autodecode": "webdataset_pipelines",
    "datasets.formatting.formatting": "hf_datasets",
    "datasets.formatting.torch_formatter": "hf_datasets",
    "datasets.formatting.np_formatter": "hf_datasets",
    "datasets.formatting.polars_formatter": "hf_datasets",
    "datasets.formatting.jax_formatter": "hf_datasets",
    "datasets.iterable_dataset": "hf_datasets",
    "lightning.pytorch.loops.fetchers": "lightning_loops",
    "lightning.pytorch.loops.evaluation_loop": "lightning_loops",
    "pytorch_lightning.loops.fetchers": "lightning_loops",
    "pytorch_lightning.loops.evaluation_loop": "lightning_loops",
    "accelerate.data_loader": "accelerate_loaders",
    "ray.data._internal.block_batching.iter_batches": "ray_data",
    "ray.data._internal.execution.operators.map_transformer": "ray_data",
    "litdata.streaming.dataset": "litdata_streaming",
    "litdata.streaming.item_loader": "litdata_streaming",
    "streaming.base.dataset": "mosaicml_streaming",
    "streaming.base.format.mds.reader": "mosaicml_streaming",
    "tfrecord.reader": "tfrecord_reader",
    "tfrecord.torch.dataset": "tfrecord_reader",
    "torchvision.transforms.v2._transform": "transforms",
    "zlib": "decoders",
    "torchvision.io.video": "decoders",
    "torchvision.io.video_reader": "decoders",
    "torchcodec.decoders._video_decoder": "decoders",
    "torchcodec.decoders._audio_decoder": "decoders",
    "simplejpeg": "decoders",
    "turbojpeg": "decoders",
    "imageio.v2": "decoders",
    "imageio.v3": "decoders",
    "imageio.core.legacy_plugin_wrapper": "decoders",
    "imageio.core.format": "decoders",
    "soundfile": "decoders",
    "numpy.lib._npyio_impl": "decoders",
    "numpy.lib.npyio": "decoders",
    "h5py._hl.dataset": "decoders",
    "zarr.core": "decoders",
    "zarr.core.array": "decoders",
    "pyarrow.parquet.core": "decoders",
    "pyarrow.feather": "decoders",
    "pyarrow.orc": "decoders",
    "pyarrow.csv": "decoders",
    "pyarrow.json": "decoders",
    "pyarrow.lib": "decoders",
    "pyarrow._dataset": "decoders",
    "pandas.io.parquet": "decoders",
    "pandas.io.feather_format": "decoders",
    "pandas.io.orc": "decoders",
    "pandas.io.parsers.readers": "decoders",
    "pandas.io.json._json": "decoders",
    "pandas.io.pickle": "decoders",
    "pandas.io.pytables": "decoders",
    "polars.io.parquet.functions": "decoders",
    "polars.io.csv.functions": "decoders",
    "polars.io.ipc.functions": "decoders",
    "polars.io.json.read": "decoders",
    "polars.io.ndjson": "decoders",
    "tokenizers": "decoders",
    "transformers.tokenization_utils_base": "decoders",
    "safetensors": "decoders",
    "safetensors.numpy": "decoders",
    "gzip": "decoders",
    "bz2": "decoders",
    "lzma": "decoders",
    "_compression": "decoders",
    "compression._common._streams": "decoders",
    "compression.zstd": "decoders",
    "zstandard": "decoders",
    "lz4.frame": "decoders",
    "lz4.block": "decoders",
    "av.container.input": "decoders",
    "av.audio.frame": "decoders",
    "av.audio.stream": "decoders",
    "av.video.reformatter": "decoders",
    "av.video.frame": "decoders",
    "av.video.stream": "decoders",
    "av.codec.context": "decoders",
    "av.packet": "decoders",
    "imageio.plugins.pyav": "decoders",
    "imageio.plugins.pillow": "decoders",
}
"""Modules of libraries, and the module here that observes each; two are separated by a blank."""

_PILLOW_PLUGIN: Final = "ImagePlugin"

_state: "HookState | None" = None
_watch: Watch | None = None
_own_modules: dict[str, ModuleType] = {}
"""What of ioprof was loaded when it started. A program may remove modules that it does not expect from `sys.modules` before it runs
the user's code, as PEX does; the observers would then fail in the job when they import a further module."""


def installed() -> "HookState | None":
    """The state of the hooks of this process; None: they were never installed."""
    return _state


def install(spool: Path, window: str | None, environment: Mapping[str, str]) -> "HookState":
    """Record this process into `spool`, and observe all watched modules: those that are loaded now, the others when they are.

    `window` says when its GPU is recorded, None as by default, see `gpu`; `environment` is the process's. Costs the job one look-up
    per import. Raises `CaptureError`.
    """
    from ioprof.instrument.hooks.state import HookState

    global _state, _watch
    if _state is None:
        _state = HookState()
    _state.begin(spool, window, environment)
    if _watch is None:
        _watch = Watch(_is_watched, _observe, _state.record_import)
        sys.meta_path.insert(0, _watch)
        for name in [name for name in list(sys.modules) if _is_watched(name)]:
            module = sys.modules.get(name)
            # One that is just being executed lacks what its end would define, and is left alone.
            if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
                _observe(module)
        _own_modules.update((name, module) for name, module in list(sys.modules.items()) if name.partition(".")[0] == "ioprof")
    return _state


def remove() -> None:
    """End the recording of this process, and take all hooks away again."""
    global _watch
    if _state is None:
        return
    _state.end()
    if _watch in sys.meta_path:
        sys.meta_path.remove(_watch)
    _watch = None
    _state.patches.undo()


def _is_watched(name: str) -> bool:
    return name in WATCHED or (name.endswith(_PILLOW_PLUGIN) and name.startswith("PIL."))


def _observe(module: ModuleType) -> None:
    assert _state is not None
    if "ioprof" not in sys.modules:
        sys.modules.update(_own_modules)
    for name in WATCHED.get(module.__name__, "pillow").split():
        try:
            import_module(f"ioprof.instrument.hooks.{name}").observe(module, _state)
        except Exception as error:
            _state.record_fact(unobserved=module.__name__, why=f"{type(error).__name__}: {error}")
