"""What bounds requests to an object store, and what to change for it."""

from typing import Final

from ioprof.analysis.answer.evidence import Evidence
from ioprof.analysis.answer.finding import Found, finding, not_modelled
from ioprof.analysis.answer.queue_advice import more_workers
from ioprof.format.run_record import Facts, ObjectStore, StoreBound

_FEW_CONNECTIONS: Final = 0.5
"""New connections per request from which on keeping them open is advised: most requests pay for
one."""
_LEAST_IN_TURN: Final = 2.0
"""Requests of a batch that follow one another, from which on they could be sent together."""


def main_store(evidence: Evidence, bound: str) -> ObjectStore | None:
    """The server whose requests explain a bound: of `storage` that which was waited for longest, of
    `loader` one of which the client is the bound.
    """
    stores = evidence.storage.stores
    if bound == "storage":
        store = max(stores, key=lambda each: each.waited_s, default=None)
        return store if store and store.bound is not StoreBound.CLIENT else None
    if bound != "loader":
        return None
    return next((each for each in stores if each.bound is StoreBound.CLIENT), None)


def store_facts(store: ObjectStore) -> Facts:
    """What takes most of the time of the requests to a server; with the name of its bound."""
    return {
        "store": store.origin,
        "requests": store.requests,
        "each_bytes": store.bytes / store.requests if store.requests else None,
        "first_s": store.first_byte_p50_s or 0.0,
        "bytes_per_s": store.bytes_per_s or 0.0,
        "waiting": store.waited_s / store.busy_s if store.busy_s else 0.0,
        store.bound.name.lower() if store.bound else "unbound": True,
    }


def store_advice(evidence: Evidence, bound: str) -> Found:
    """What to change, best first; nothing where no server explains the bound."""
    store = main_store(evidence, bound)
    if store is None or store.bound is None:
        return
    facts = store_facts(store)
    if store.bound in (StoreBound.SMALL, StoreBound.LATENCY, StoreBound.STALLS):
        yield from _together(store, bound, facts)
    if store.bound is StoreBound.SMALL:
        yield not_modelled("pack_objects", bound, **facts)
        yield from more_workers(evidence, "store_requests", **facts)
    elif store.bound is StoreBound.STALLS:
        yield not_modelled("request_timeout", bound, **facts)
    elif store.bound is StoreBound.CLIENT:
        yield not_modelled("native_client", bound, **facts)
    else:
        yield not_modelled("nearer_store", bound, **facts)
        yield from more_workers(evidence, "store_connections", **facts)
    if store.requests and store.connections > _FEW_CONNECTIONS * store.requests:
        yield not_modelled("keep_connections", bound, opened=store.connections, **facts)


def _together(store: ObjectStore, bound: str, facts: Facts) -> Found:
    """The requests of a batch at the same time, where each waits for the one before."""
    at_a_time = store.took_s / store.busy_s if store.busy_s else 1.0
    in_turn = (store.per_batch or 1.0) / max(1.0, at_a_time)
    if in_turn >= _LEAST_IN_TURN:
        found = finding("requests_together", cause=bound, in_turn=in_turn, **facts)
        yield found.replace(part=1 - 1 / in_turn)
