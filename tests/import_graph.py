"""Which module imports which, of the package and of the tests, as a parser sees it."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from repository import PACKAGES, module_name, python_files, syntax_tree


def absolute_name(node: ast.ImportFrom, importer: str) -> str:
    """The module that `from ... import` names, of an import that may be relative."""
    if not node.level:
        return node.module or ""
    above = importer.split(".")[: -node.level]
    return ".".join([*above, node.module] if node.module else above)


def dotted_name(node: ast.AST) -> str:
    """`a.b.c` of such an expression; empty for others."""
    if isinstance(node, ast.Attribute):
        return f"{dotted_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@cache
def package_modules() -> frozenset[str]:
    """All modules of the package."""
    return frozenset(module_name(path) for path in python_files(*PACKAGES))


def module_imports(path: Path, *, types: bool = False) -> Iterator[str]:
    """The modules of ioprof that a file imports when it runs, anywhere in it, and with `types` also
    those that it imports for type checkers; of `from PACKAGE import MODULE` the module alone."""
    importer = f"{module_name(path)}.__init__" if path.name == "__init__.py" else module_name(path)
    tree = syntax_tree(path)
    for node in ast.walk(tree) if types else _at_run_time(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = absolute_name(node, importer)
            names = [
                name if (name := f"{base}.{alias.name}") in package_modules() else base
                for alias in node.names
            ]
        elif (
            isinstance(node, ast.Call)
            and dotted_name(node.func).endswith("import_module")
            and node.args
        ):
            names = [
                name for name in [getattr(node.args[0], "value", None)] if isinstance(name, str)
            ]
        yield from (name for name in names if name in package_modules() and name != "ioprof")


def helper_imports(path: Path) -> Iterator[str]:
    """The modules of the tests that a file of the tests imports: `jobs`, `faults.case`."""
    for node in ast.walk(syntax_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _at_run_time(tree: ast.Module) -> Iterator[ast.AST]:
    """All nodes but those for type checkers only."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and dotted_name(node.test).endswith("TYPE_CHECKING"):
            waiting += node.orelse
            continue
        yield node
        waiting += ast.iter_child_nodes(node)
