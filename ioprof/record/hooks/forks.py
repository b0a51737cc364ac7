"""Children that multiprocessing forks."""

from types import ModuleType

from ioprof.record.hooks.session import Session, session


def observe(util: ModuleType) -> None:
    """Have such a child record from its start: multiprocessing calls what is registered so, after it cleared its finalizers."""
    util.register_after_fork(session, Session.wake)
