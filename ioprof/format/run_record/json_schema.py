"""JSON schemas of run.json and summary.json, derived from the records; the descriptions are the
fields' docstrings.
"""

import ast
import inspect
import json
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from ioprof.format.run_record import capture_json, job_json, run_json, summary_json
from ioprof.format.run_record.record import Record

FILES: Final[dict[str, type[Record]]] = {
    "run.schema.json": run_json.RunRecord,
    "summary.schema.json": summary_json.Summary,
}
"""The schemas that docs/ holds, and the records that they are derived from."""


def json_schema(record: type[Record]) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a record and all records in it. Further keys are allowed
    everywhere.
    """
    (found,), parts = msgspec.json.schema_components([record], ref_template="#/$defs/{name}")
    parts.pop("Kept")
    for name, part in parts.items():
        properties = part.get("properties", {})
        properties.pop("_kept", None)
        for key, entry in properties.items():
            if isinstance(entry.get("default"), dict):
                del entry["default"]
            if text := _field_texts().get((name, key)):
                properties[key] = {**entry, "description": text}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **found,
        "$defs": dict(sorted(parts.items())),
    }


def write_schemas(folder: Path) -> None:
    """Write the files of `FILES`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, record in FILES.items():
        (folder / name).write_text(
            json.dumps(json_schema(record), indent=1) + "\n", encoding="utf-8"
        )


@cache
def _field_texts() -> dict[tuple[str, str], str]:
    """By class and JSON key, the docstring of the field."""
    texts = {}
    for module in (capture_json, job_json, run_json, summary_json):
        names = {
            cls.__name__: cls
            for cls in vars(module).values()
            if isinstance(cls, type) and issubclass(cls, Record)
        }
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.ClassDef) and node.name in names:
                keys = {
                    field.name: field.encode_name
                    for field in msgspec.structs.fields(names[node.name])
                }
                for before, after in zip(node.body, node.body[1:], strict=False):
                    text = _text_of(after)
                    if (
                        isinstance(before, ast.AnnAssign)
                        and isinstance(before.target, ast.Name)
                        and text
                    ):
                        texts[node.name, keys[before.target.id]] = text
    return texts


def _text_of(node: ast.stmt) -> str | None:
    if (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ):
        return " ".join(inspect.cleandoc(node.value.value).split())
    return None
