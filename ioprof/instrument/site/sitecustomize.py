"""Python runs this in every process of a recorded job, since `ioprof record` puts its folder in
front of PYTHONPATH.

It starts ioprof, removes itself, and then imports the user's own `sitecustomize`: what that one
raises, or that there is none, Python sees as it would have. Errors of ioprof are not raised in the
job: they are written to the spool, so that the report says that this process is not observed, and
are printed where IOPROF_DEBUG is set. Python 3.6 can read this file.
"""

import os
import sys

_OLDEST = (3, 11)


def _is_standard(entry: object) -> bool:
    """Whether an entry of the search path is of Python's standard library."""
    archive = f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
    return isinstance(entry, str) and (
        entry == os.path.dirname(os.__file__) or os.path.basename(entry) in ("lib-dynload", archive)
    )


def _start() -> None:
    if sys.version_info < _OLDEST:
        raise RuntimeError(f"ioprof observes Python {_OLDEST[0]}.{_OLDEST[1]} and newer")
    path, loaded = sys.path[:], set(sys.modules)
    # a user's json.py is not for ioprof
    sys.path[:] = [entry for entry in path if _is_standard(entry)]
    try:
        _load_package()
        from ioprof.instrument import autostart
    finally:
        sys.path[:] = path
    other = autostart.other_module(
        path[: next((place for place, entry in enumerate(path) if _is_standard(entry)), 0)], loaded
    )
    if other is not None:
        for name in set(sys.modules) - loaded:
            del sys.modules[name]
        raise RuntimeError(f"{other} stands in front of a module of Python's that ioprof needs")
    autostart.start()


def _load_package() -> None:
    """Load ioprof from this file's package, without a place on the search path: the job keeps its
    own path.
    """
    import importlib.util

    if "ioprof" in sys.modules:
        return
    package = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    path = os.path.join(package, "__init__.py")
    spec = importlib.util.spec_from_file_location(
        "ioprof", path, submodule_search_locations=[package]
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["ioprof"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["ioprof"]
        raise


def _record_failure(error: Exception) -> None:
    """Write why this process is not observed to the facts of the job. No module is imported for it,
    which may be the user's.
    """
    why = "".join(
        letter if letter.isalnum() or letter in " .,:;/()'_-" else "?"
        for letter in f"{type(error).__name__}: {error}"
    )
    why = why.encode("ascii", "replace").decode()
    fact = (
        f'{{"unobserved": "Python {sys.version_info[0]}.{sys.version_info[1]}", "why": "{why}"}}\n'
    )
    with open(
        os.path.join(os.environ["IOPROF_SPOOL"], f"facts-{os.uname()[1]}-{os.getpid()}.jsonl"), "a"
    ) as file:
        file.write(fact)


def _remove_itself() -> None:
    """Remove this folder and this module, so that the next import finds what it would have found
    without them.

    The working directory may be gone, so that no path is made absolute.
    """
    here = os.path.dirname(__file__)
    sys.path[:] = [
        entry
        for entry in sys.path
        if not isinstance(entry, str) or os.path.normpath(entry) != os.path.normpath(here)
    ]
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
        if os.environ.get("IOPROF_DEBUG") and sys.stderr is not None:
            sys.stderr.write(
                f"ioprof: this process is not recorded ({type(error).__name__}: {error})\n"
            )
# by the capture library, where Python does not import this module: -I, -E, -S
if __name__ == "ioprof_start":
    _remove_itself()
if __name__ == "sitecustomize":
    _remove_itself()
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401  the user's; where there is none, Python expects this very error
