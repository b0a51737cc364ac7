"""Children that multiprocessing forks."""

from types import ModuleType

from ioprof.instrument.hooks.state import HookState


def observe(util: ModuleType, state: HookState) -> None:
    """Record such a child from its start: multiprocessing calls what is registered here, after it
    cleared its finalizers.
    """
    util.register_after_fork(state, HookState.start_deferred)
