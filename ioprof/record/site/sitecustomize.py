"""Python runs this in every process of a recorded job, since `ioprof record` puts its folder in front of PYTHONPATH.

It starts ioprof and then makes way for the user's own `sitecustomize`, as if it had never been there: what that one raises, or that
there is none, Python sees as it would have. Whatever fails here is kept from the job, and told only where IOPROF_DEBUG is set.
"""

import os
import sys


def _start() -> None:
    import importlib.util

    if "ioprof" not in sys.modules:  # from beside this file, without a place on the search path: the job keeps its own
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
    from ioprof.record import autostart

    autostart.start()


def _make_way() -> None:
    """Take this folder and this module away, so that the next import finds what it would have found without them."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if not isinstance(entry, str) or os.path.abspath(entry) != here]
    sys.path_importer_cache.pop(here, None)
    sys.modules.pop(__name__, None)


if os.environ.get("IOPROF_SPOOL"):
    try:
        _start()
    except Exception as error:
        if os.environ.get("IOPROF_DEBUG"):
            sys.stderr.write(f"ioprof: this process is not recorded ({type(error).__name__}: {error})\n")
if __name__ == "sitecustomize":
    _make_way()
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401  the user's; where there is none, Python expects this very error
