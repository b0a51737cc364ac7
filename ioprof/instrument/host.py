"""The name of this host: part of every file of a spool, and of most files' names, since hosts may
share a spool.
"""

import os


def host() -> str:
    """The name of this host (man uname: nodename), the same in every process of it."""
    return os.uname().nodename
