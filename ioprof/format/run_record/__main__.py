"""`python -m ioprof.format.run_record [FOLDER]`: writes the JSON schemas of run.json and
summary.json into docs/, or another folder.
"""

import argparse
from pathlib import Path

from ioprof.format.run_record.json_schema import write_schemas

parser = argparse.ArgumentParser(description="Write the JSON schemas of run.json and summary.json.")
parser.add_argument("folder", nargs="?", type=Path, default=Path("docs"))
write_schemas(parser.parse_args().folder)
