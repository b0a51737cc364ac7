"""ioprof: what a deep-learning training job waits for, from the storage read to the GPU kernel, on
one clock.

    run = ioprof.record(["python", "train.py"], out="runs/first")    any command, unchanged
    run = ioprof.run("data", ranks=2, steps=50)                      the built-in training job
    run = ioprof.snapshot("runs/first")                              what is recorded so far, while
                                                                     the job goes on
    with ioprof.profile("runs/notebook"): ...                        a block of this process
    with ioprof.span("augment"): ...                                 a span of your own in a
                                                                     recorded job
    for batch in ioprof.batches(loader): ...                         a loader of your own in a
                                                                     recorded job
    run = ioprof.load("runs/first")                                  its summary, tables in
                                                                     milliseconds, and figures
    print(ioprof.compare("runs/first", "runs/second"))               runs side by side
    ioprof.whatif("runs/first", workers=8).speedup                   what a change would bring
    ioprof.prove("runs/first", advice=1).measured                    what an advised change brings,
                                                                     measured
    ioprof.extrapolate("runs/first", epochs=90, records=1281167)     how long a whole training takes
    print(ioprof.study("rannc-mlp").to_json())                       a published study made again
    ioprof.simulate("tsubame3", "resnet50", ranks=128)               a job on a system that is not
                                                                     at hand
    ioprof.size("resnet50", device="h100", ranks=1024)               what a job needs of a system
    ioprof.convert(source, "data", layout="lmdb")                    a dataset of images
    ioprof.probe("/lustre/me/data")                                  what a path delivers

Errors are those of `ioprof.errors`. Everything but `span` is imported when it is first used. `span`
and `batches` work in a job whose interpreter cannot load the C extension; all else needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ioprof.instrument.span import span

if TYPE_CHECKING:
    from ioprof.api import compare as compare
    from ioprof.api import convert as convert
    from ioprof.api import extrapolate as extrapolate
    from ioprof.api import load as load
    from ioprof.api import probe as probe
    from ioprof.api import profile as profile
    from ioprof.api import prove as prove
    from ioprof.api import record as record
    from ioprof.api import run as run
    from ioprof.api import simulate as simulate
    from ioprof.api import size as size
    from ioprof.api import snapshot as snapshot
    from ioprof.api import study as study
    from ioprof.api import whatif as whatif
    from ioprof.format.trace import Trace as Trace
    from ioprof.instrument.batches import batches as batches
    from ioprof.report.explore import Run as Run

__all__ = [
    "Run",
    "Trace",
    "batches",
    "compare",
    "convert",
    "extrapolate",
    "load",
    "probe",
    "profile",
    "prove",
    "record",
    "run",
    "simulate",
    "size",
    "snapshot",
    "span",
    "study",
    "whatif",
]
__version__ = "0.1.0"

_LAZY: Final = {
    "Run": ("ioprof.report.explore", "Run"),
    "Trace": ("ioprof.format.trace", "Trace"),
    "batches": ("ioprof.instrument.batches", "batches"),
    "load_ipython_extension": ("ioprof.notebook", "load_ipython_extension"),  # %load_ext ioprof
    **{
        name: ("ioprof.api", name)
        for name in (
            "compare",
            "convert",
            "extrapolate",
            "load",
            "probe",
            "profile",
            "prove",
            "record",
            "run",
            "simulate",
            "size",
            "snapshot",
            "study",
            "whatif",
        )
    },
}
"""Module and name there of what is imported at first use: the libraries behind it are heavy, and a
recorded job needs none."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ioprof' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    if name != "batches":
        import_module("ioprof.extension").require_extension()
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
