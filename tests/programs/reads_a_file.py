"""Reads a file, and copies what its spool has as text to a folder:
`python reads_a_file.py FILE FOLDER ...`."""

import os
import shutil
import sys
from pathlib import Path

Path(sys.argv[1]).read_bytes()
folder = Path(sys.argv[2])
folder.mkdir()
for path in Path(os.environ["IOPROF_SPOOL"]).glob("*.json*"):
    shutil.copy(path, folder)
