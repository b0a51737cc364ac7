"""`python -m ioprof` is `ioprof`."""

from ioprof.cli import program

if __name__ == "__main__":
    raise SystemExit(program())
