"""Loads a library of ioprof that was built apart from it, such as with sanitizers."""

import importlib.machinery
import importlib.util
from types import ModuleType


def loaded(name: str, path: str) -> ModuleType:
    """The extension module `name` in the file `path`. Raises ImportError if it cannot be loaded."""
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
