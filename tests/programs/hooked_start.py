"""Says what a Python process finds of itself, as JSON: run with and without ioprof, the two must
agree.

python hooked_start.py
"""

import importlib.util
import json
import os
import random
import signal
import sys
import threading

found = {
    "search path": sys.path,
    "sitecustomize": getattr(sys.modules.get("sitecustomize"), "WHO", None),
    "threads": [thread.name for thread in threading.enumerate()],
    "kernel threads": len(os.listdir("/proc/self/task")),
    "handlers": [
        str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
    ],
    "open files": len(os.listdir("/proc/self/fd")),
    "libraries": sorted(
        {name.split(".")[0] for name in sys.modules} - {"ioprof"} - sys.stdlib_module_names
    ),
    "folder": os.getcwd(),
    "random": random.Random(1).random(),
    "has a sitecustomize": importlib.util.find_spec("sitecustomize") is not None
    if "sitecustomize" in sys.modules
    else False,
}
print(json.dumps(found))
