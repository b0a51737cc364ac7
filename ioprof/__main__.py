"""`python -m ioprof` is `ioprof`."""

from ioprof.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
