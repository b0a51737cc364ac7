"""The files that mark a folder as written by ioprof: name and schema of each.

A folder that holds one of them with the right schema may be replaced by `--force`; no other folder
is ever removed.
"""

from typing import Final

from ioprof.format.dataset import MANIFEST_NAME
from ioprof.format.schema import DATASET_SCHEMA

SYNTHETIC_NAME: Final = "synthetic.json"
"""In a folder that `generate` made."""

SYNTHETIC_SCHEMA: Final = "ioprof.synthetic/1"

PART_NAME: Final = "part.json"
"""In a folder that holds one part of a dataset."""

PART_SCHEMA: Final = "ioprof.part/1"

SCHEMAS: Final = {
    MANIFEST_NAME: DATASET_SCHEMA,
    SYNTHETIC_NAME: SYNTHETIC_SCHEMA,
    PART_NAME: PART_SCHEMA,
}
"""File name → its schema."""
