"""Hooks into the libraries of a job: they observe data loaders, decoders, optimizers and
collectives, and change nothing. One of them, `made_loaders`, changes arguments of a loader in a job
whose environment asks for it, which `ioprof prove` alone does.

Each module here knows one library and has `observe(module, state)`. `WATCHED` says which modules of
libraries it observes, right after they were executed; one that the job never imports is never
imported here. Whatever an `observe` raises is recorded as a fact: the job goes on without that
hook.
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
    "torch.utils.data.dataloader": "pytorch.consumer",
    "torch.utils.data._utils.worker": "pytorch.worker",
    "torch.utils.data._utils.fetch": "pytorch.fetcher",
    "torch.nn.modules.module": "pytorch.modules",
    "torch.optim.optimizer": "pytorch.training",
    "torch.compiler": "pytorch.compiler",
    "torch.autograd": "pytorch.training",
    "torch._dynamo.callback": "pytorch.compilations",
    "torch.serialization": "pytorch.checkpoints libraries.decoders",
    "torch.distributed.checkpoint.state_dict_saver": "pytorch.checkpoints",
    "torch.distributed.checkpoint.state_dict_loader": "pytorch.checkpoints",
    "safetensors.torch": "pytorch.checkpoints libraries.decoders",
    "transformers.trainer": "pytorch.checkpoints",
    "accelerate.accelerator": "pytorch.checkpoints",
    "lightning.pytorch.trainer.trainer": "pytorch.checkpoints",
    "pytorch_lightning.trainer.trainer": "pytorch.checkpoints",
    "torch.distributed.distributed_c10d": "pytorch.collectives pytorch.messages",
    "torch.nn.parallel.distributed": "pytorch.gradients",
    "torch.distributed.pipelining.schedules": "pytorch.pipelining",
    "torch.distributed.fsdp._fully_shard._fsdp_state": "pytorch.sharding",
    "torchvision.transforms.transforms": "libraries.transforms",
    "torchvision.transforms.v2._container": "libraries.transforms",
    "albumentations.core.composition": "libraries.transforms",
    "PIL.Image": "libraries.transforms",
    "PIL.ImageFile": "libraries.pillow",
    "cv2": "libraries.opencv",
    "torchvision.io.image": "libraries.decoders",
    "nvidia.dali.plugin.pytorch": "libraries.dali",
    "nvidia.dali.pipeline": "libraries.dali",
    "nvidia.dali.experimental.dynamic._ops": "libraries.dali_dynamic",
    "nvidia.dali.experimental.dynamic._invocation": "libraries.dali_dynamic",
    "nvidia.dali.experimental.dynamic._capture": "libraries.dali_dynamic",
    "torchdata.stateful_dataloader.stateful_dataloader": "libraries.stateful_loader",
    "torchdata.stateful_dataloader.worker": "libraries.stateful_loader",
    "spdl.pipeline._pipeline": "libraries.spdl",
    "spdl.pipeline._iter_utils._common": "libraries.spdl",
    "spdl.pipeline._iter_utils._subprocess": "libraries.spdl",
    "concurrent.futures._base": "libraries.futures",
    "concurrent.futures.thread": "libraries.futures",
    "selectors": "libraries.selectors",
    "concurrent.futures.process": "libraries.process_executors",
    "loky.process_executor": "libraries.process_executors",
    "joblib.externals.loky.process_executor": "libraries.process_executors",
    "joblib.parallel": "libraries.joblib_parallel",
    "queue": "libraries.queues",
    "multiprocessing.pool": "libraries.process_pools",
    "webdataset.shardlists": "libraries.webdataset_shards",
    "webdataset.filters": "libraries.webdataset_pipelines",
    "webdataset.tariterators": "libraries.webdataset_pipelines",
    "webdataset.autodecode": "libraries.webdataset_pipelines",
    "datasets.formatting.formatting": "libraries.hf_datasets",
    "datasets.formatting.torch_formatter": "libraries.hf_datasets",
    "datasets.formatting.np_formatter": "libraries.hf_datasets",
    "datasets.formatting.polars_formatter": "libraries.hf_datasets",
    "datasets.formatting.jax_formatter": "libraries.hf_datasets",
    "datasets.iterable_dataset": "libraries.hf_datasets",
    "lightning.pytorch.loops.fetchers": "libraries.lightning_loops",
    "lightning.pytorch.loops.evaluation_loop": "libraries.lightning_loops",
    "pytorch_lightning.loops.fetchers": "libraries.lightning_loops",
    "pytorch_lightning.loops.evaluation_loop": "libraries.lightning_loops",
    "accelerate.data_loader": "libraries.accelerate_loaders",
    "ray.data._internal.block_batching.iter_batches": "libraries.ray_data",
    "ray.data._internal.execution.operators.map_transformer": "libraries.ray_data",
    "litdata.streaming.dataset": "libraries.litdata_streaming",
    "litdata.streaming.item_loader": "libraries.litdata_streaming",
    "streaming.base.dataset": "libraries.mosaicml_streaming",
    "streaming.base.format.mds.reader": "libraries.mosaicml_streaming",
    "tfrecord.reader": "libraries.tfrecord_reader",
    "tfrecord.torch.dataset": "libraries.tfrecord_reader",
    "torchvision.transforms.v2._transform": "libraries.transforms",
    "zlib": "libraries.decoders",
    "torchvision.io.video": "libraries.decoders",
    "torchvision.io.video_reader": "libraries.decoders",
    "torchcodec.decoders._video_decoder": "libraries.decoders",
    "torchcodec.decoders._audio_decoder": "libraries.decoders",
    "simplejpeg": "libraries.decoders",
    "turbojpeg": "libraries.decoders",
    "imageio.v2": "libraries.decoders",
    "imageio.v3": "libraries.decoders",
    "imageio.core.legacy_plugin_wrapper": "libraries.decoders",
    "imageio.core.format": "libraries.decoders",
    "soundfile": "libraries.decoders",
    "numpy.lib._npyio_impl": "libraries.decoders",
    "numpy.lib.npyio": "libraries.decoders",
    "h5py._hl.dataset": "libraries.decoders",
    "zarr.core": "libraries.decoders",
    "zarr.core.array": "libraries.decoders",
    "pyarrow.parquet.core": "libraries.decoders",
    "pyarrow.feather": "libraries.decoders",
    "pyarrow.orc": "libraries.decoders",
    "pyarrow.csv": "libraries.decoders",
    "pyarrow.json": "libraries.decoders",
    "pyarrow.lib": "libraries.decoders",
    "pyarrow._dataset": "libraries.decoders",
    "pandas.io.parquet": "libraries.decoders",
    "pandas.io.feather_format": "libraries.decoders",
    "pandas.io.orc": "libraries.decoders",
    "pandas.io.parsers.readers": "libraries.decoders",
    "pandas.io.json._json": "libraries.decoders",
    "pandas.io.pickle": "libraries.decoders",
    "pandas.io.pytables": "libraries.decoders",
    "polars.io.parquet.functions": "libraries.decoders",
    "polars.io.csv.functions": "libraries.decoders",
    "polars.io.ipc.functions": "libraries.decoders",
    "polars.io.json.read": "libraries.decoders",
    "polars.io.ndjson": "libraries.decoders",
    "tokenizers": "libraries.decoders",
    "transformers.tokenization_utils_base": "libraries.decoders",
    "safetensors": "libraries.decoders",
    "safetensors.numpy": "libraries.decoders",
    "gzip": "libraries.decoders",
    "bz2": "libraries.decoders",
    "lzma": "libraries.decoders",
    "_compression": "libraries.decoders",
    "compression._common._streams": "libraries.decoders",
    "compression.zstd": "libraries.decoders",
    "zstandard": "libraries.decoders",
    "lz4.frame": "libraries.decoders",
    "lz4.block": "libraries.decoders",
    "av.container.input": "libraries.decoders",
    "av.audio.frame": "libraries.decoders",
    "av.audio.stream": "libraries.decoders",
    "av.video.reformatter": "libraries.decoders",
    "av.video.frame": "libraries.decoders",
    "av.video.stream": "libraries.decoders",
    "av.codec.context": "libraries.decoders",
    "av.packet": "libraries.decoders",
    "imageio.plugins.pyav": "libraries.decoders",
    "imageio.plugins.pillow": "libraries.decoders",
}
"""Modules of libraries, and the module here that observes each; two are separated by a blank."""

_PILLOW_PLUGIN: Final = "ImagePlugin"

_state: "HookState | None" = None
_watch: Watch | None = None
_own_modules: dict[str, ModuleType] = {}
"""What of ioprof was loaded when it started. A program may remove modules that it does not expect
from `sys.modules` before it runs the user's code, as PEX does; the observers would then fail in the
job when they import a further module."""


def installed() -> "HookState | None":
    """The state of the hooks of this process; None: they were never installed."""
    return _state


def install(spool: Path, window: str | None, environment: Mapping[str, str]) -> "HookState":
    """Record this process into `spool`, and observe all watched modules: those that are loaded now,
    the others when they are.

    `window` says when its GPU is recorded, None as by default, see `gpu`; `environment` is the
    process's. Costs the job one look-up per import. Raises `CaptureError`.
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
            if module is not None and not getattr(
                getattr(module, "__spec__", None), "_initializing", False
            ):
                _observe(module)
        _own_modules.update(
            (name, module)
            for name, module in list(sys.modules.items())
            if name.partition(".")[0] == "ioprof"
        )
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
    for name in WATCHED.get(module.__name__, "libraries.pillow").split():
        try:
            import_module(f"ioprof.instrument.hooks.{name}").observe(module, _state)
        except Exception as error:
            _state.record_fact(unobserved=module.__name__, why=f"{type(error).__name__}: {error}")
