"""What bounds requests to an object store, and what to change for it."""

from typing import Final

from ioprof.analysis.answer.evidence import Evidence
from ioprof.analysis.answer.own_advice import Lines, ms
from ioprof.analysis.answer.queue_advice import more_workers
from ioprof.format.run_record import Advice, NoGain, ObjectStore, StoreBound

HTTP: Final = ("http://", "https://")
"""How the paths of objects begin."""
_FEW_CONNECTIONS: Final = 0.5
"""New connections per request from which on keeping them open is advised: most requests pay for
one."""


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


def store_text(evidence: Evidence, bound: str) -> str:
    """What bounds the requests, as a sentence with a space before it; empty: nothing is known."""
    store = main_store(evidence, bound)
    return f" {bound_text(store)}." if store and store.bound else ""


def bound_text(store: ObjectStore) -> str:
    """What takes most of the time of the requests to a server."""
    waited = store.waited_s / store.busy_s if store.busy_s else 0.0
    first = f"the first byte came after {ms(store.first_byte_p50_s or 0.0)} (p50)"
    rate = f"{(store.bytes_per_s or 0.0) / 1e6:,.1f} MB/s per connection"
    size = f"{store.bytes / store.requests / 1e3:,.0f} kB each" if store.requests else ""
    if store.bound is StoreBound.STALLS:
        return (
            f"A few of {store.requests:,} requests to {store.origin} stalled, and took most of the"
            f" time; of half of the requests {first.removesuffix(' (p50)')} or less"
        )
    if store.bound is StoreBound.CLIENT:
        return (
            f"The client is the bound of {store.requests:,} requests to {store.origin}: only"
            f" {waited:.0%} of their time was waiting for the server; the rest is what the client"
            f" does with what it has received ({rate})"
        )
    if store.bound is StoreBound.SMALL:
        return (
            f"{store.requests:,} requests to {store.origin} fetched small objects, {size}:"
            f" {first}, and {waited:.0%} of their time was waiting"
        )
    slow = first if store.bound is StoreBound.LATENCY else f"it sent {rate}"
    return (
        f"The server is the bound of {store.requests:,} requests to {store.origin} ({size}):"
        f" {slow}, and {waited:.0%} of their time was waiting for it"
    )


def store_advice(evidence: Evidence, bound: str) -> Lines:
    """What to change, best first; nothing where no server explains the bound."""
    store = main_store(evidence, bound)
    if store is None or store.bound is None:
        return
    why = bound_text(store)
    why = why[:1].lower() + why[1:]
    if store.bound is StoreBound.SMALL:
        yield _advice(
            "Fetch many samples with one request: pack them into shards (WebDataset, Parquet) of"
            f" 100 MB and more: {why}",
            bound,
        )
        yield from more_workers(evidence, f"each has one request at a time; {why}")
    elif store.bound is StoreBound.STALLS:
        yield _advice(
            "Give requests a time-out of a few times the usual duration, and repeat those that"
            f" exceed it: {why}",
            bound,
        )
    elif store.bound is StoreBound.CLIENT:
        yield _advice(
            "Do less in the client: a client in native code (s3torchconnector, boto3[crt],"
            f" obstore), reads of several MB at a time, more processes instead of threads: {why}",
            bound,
        )
    else:
        yield _advice(
            "Copy the data to node-local storage before the job starts, or use a server that is"
            f" nearer or faster: {why}",
            bound,
        )
        yield from more_workers(evidence, f"each has its own connections; {why}")
    if store.requests and store.connections > _FEW_CONNECTIONS * store.requests:
        yield _advice(
            f"Keep connections open (one session or client per worker): {store.connections:,} were"
            f" opened for {store.requests:,} requests to {store.origin}",
            bound,
        )


def _advice(action: str, bound: str) -> Advice:
    return Advice(action, cause=bound, no_gain=NoGain.NOT_MODELLED)
