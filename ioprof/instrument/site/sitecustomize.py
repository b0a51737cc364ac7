"""Python runs this in every process of a recorded job, since `ioprof record` puts its folder in front of PYTHONPATH.

It starts ioprof, removes itself, and then imports the user's own `sitecustomize`: what that one raises, or that there is none,
Python sees as it would have. Errors of ioprof are not raised in the job: they are written to the spool, so that the report says
that this process is not observed, and are printed where IOPROF_DEBUG is set. Python 3.6 can read this file.
"""

import os
import sys

_OLDEST = (3, 11)


def _start() -> None:
    if sys.version_info < _OLDEST:
        raise RuntimeError(f"ioprof observes Python {_OLDEST[0]}.{_OLDEST[1]} and newer")
    import importlib.util

    if "ioprof" not in sys.modules:  # from this file's package, without a place on the search path: the job keeps its own path
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        path = os.path.join(package, "__init__.py")
        spec = importlib.util.spec_from_file_location("ioprof", path, submodule_search_locations=[package])
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules["ioprof"] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules["ioprof"]
            raise
    from ioprof.instrument import autostart

    autostart.start()


def _record_failure(error: Exception) -> None:
    """Write why this process is not observed to the facts of the job."""
    import json

    name = f"facts-{os.uname()[1]}-{os.getpid()}.jsonl"
    fact = {"unobserved": f"Python {sys.version_info[0]}.{sys.version_info[1]}", "why": f"{type(error).__name__}: {error}"}
    with open(os.path.join(os.environ["IOPROF_SPOOL"], name), "a") as file:
        file.write(json.dumps(fact) + "\n")


def _remove_itself() -> None:
    """Remove this folder and this module, so that the next import finds what it would have found without them."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if not isinstance(entry, str) or os.path.abspath(entry) != here]
    sys.path_importer_cache.pop(here, None)
    sys.modules.pop(__name__, None)


if os.environ.get("IOPROF_SPOOL"):
    try:
        _start()
    except Exception as error:
        try:  # noqa: SIM105 - contextlib may not be loaded yet
            _record_failure(error)
        except OSError:  # the spool is gone; the report lacks this
            pass
        if os.environ.get("IOPROF_DEBUG"):
            sys.stderr.write(f"ioprof: this process is not recorded ({type(error).__name__}: {error})\n")
if __name__ == "ioprof_start":  # by the capture library, where Python does not import this module: -I, -E, -S
    _remove_itself()
if __name__ == "sitecustomize":
    _remove_itself()
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401  the user's; where there is none, Python expects this very error
