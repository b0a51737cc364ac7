"""Whether ioprof's C extension is there, without which only the processes of a job work."""

import sys
from pathlib import Path

from ioprof.errors import CommandError
from ioprof.instrument.span import has_extension


def require_extension() -> None:
    """Raise `CommandError` where ioprof was installed without its C extension, or for another kind
    of interpreter.
    """
    if not has_extension:
        raise CommandError(
            f"{Path(__file__).parent} has no C extension that {sys.executable} can load; pip"
            " install a wheel of ioprof (`make wheel` on a machine with a C compiler), or install"
            " a compiler (apt-get install gcc python3-dev) and then ioprof anew"
        )
