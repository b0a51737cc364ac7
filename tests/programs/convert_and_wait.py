"""Converts SOURCE to DESTINATION by two workers, and stops after the first images until its
standard input ends."""

import sys
from pathlib import Path

from ioprof.cli import error_line
from ioprof.converters import ConvertOptions, convert
from ioprof.errors import IoprofError


def wait(_: int) -> None:
    """Say how far the work is, and wait."""
    print("begun", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    try:
        convert(
            Path(sys.argv[1]),
            Path(sys.argv[2]),
            ConvertOptions(layout="lmdb", image="rgb256", workers=2),
            wait,
        )
    except IoprofError as error:
        error_line(str(error))
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
