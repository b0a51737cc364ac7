"""`ioprof` with the arguments given, which stays at the making of the report until there is a file
"go on" beside it."""

import sys
import time
from pathlib import Path

from ioprof.cli import main
from ioprof.recording import run_writer as making

write_html = making.write_html


def write_later(*arguments):
    Path("in the report").touch()
    while not Path("go on").exists():
        time.sleep(0.01)
    write_html(*arguments)


making.write_html = write_later
sys.exit(main())
