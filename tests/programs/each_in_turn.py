"""Runs shell commands, each in the folder of its number, and writes how each ended and what it
printed.

python each_in_turn.py COMMANDS.json RESULTS.json
"""

import json
import subprocess
import sys
from pathlib import Path

commands, results = Path(sys.argv[1]), Path(sys.argv[2])
ended = {}
for number, (name, command) in enumerate(json.loads(commands.read_text()).items()):
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=str(number),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
    )
    ended[name] = [done.returncode, done.stdout, done.stderr]
results.write_text(json.dumps(ended))
