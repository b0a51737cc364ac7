"""How long the exchange of gradients takes among many ranks: the times of
`ioprof.train.accelerators.exchange`, whose messages are all listed there, as formulas.

For p ranks, k of a node, n nodes, L bytes, and t(share) the time of a message of that share of L:
the link's latency, and the bytes over the bandwidth that the message has.
"""

from typing import Final

from ioprof.errors import CommandError
from ioprof.train.accelerators.exchange import SCHEMES, Exchange, check_exchange
from ioprof.train.devices import Links

BUCKET_BYTES: Final = 25 << 20
"""Gradients that are exchanged together: `bucket_cap_mb` of torch's DistributedDataParallel."""
BACKWARD_RATIO: Final = 2 / 3
"""Of a step's computation, under which gradients can be exchanged: the backward pass has twice the
operations of the forward pass."""
_LISTED_RANKS: Final = 64
"""Up to so many ranks, the messages themselves are listed."""


def exchange_s(
    scheme: str, ranks: int, ranks_per_node: int, links: Links, num_bytes: float
) -> float:
    """Seconds of one exchange; CommandError for an unknown scheme, or ranks that it cannot have."""
    if scheme not in SCHEMES:
        raise CommandError(f"--exchange {scheme}: unknown; choose one of {', '.join(SCHEMES)}")
    check_exchange(scheme, ranks, ranks_per_node)
    if ranks < 2 or not num_bytes:
        return 0.0
    if ranks <= _LISTED_RANKS:
        return Exchange(scheme, ranks, ranks_per_node, links).seconds(round(num_bytes))
    return by_formula(scheme, ranks, ranks_per_node, links, num_bytes)


def by_formula(
    scheme: str, ranks: int, ranks_per_node: int, links: Links, num_bytes: float
) -> float:
    """The same by its formula; halving and doubling among ranks that are no power of two has none,
    and its messages are listed.
    """
    per_node = min(ranks, ranks_per_node)
    nodes = -(-ranks // per_node)

    def within(share: float) -> float:
        return links.latency_s + share * num_bytes / links.bytes_per_s

    def between(share: float) -> float:
        """Of all that a node sends in a round."""
        return links.network_latency_s + share * num_bytes / links.network_bytes_per_s

    if scheme == "ring":
        rounds = [within(1 / ranks)] if per_node > 1 else []
        rounds += [between(1 / ranks)] if nodes > 1 else []
        return 2 * (ranks - 1) * max(rounds)
    if scheme == "hierarchical":
        found = 2 * (per_node - 1) * within(1 / per_node)
        return found + (2 * (nodes - 1) * between(1 / nodes) if nodes > 1 else 0.0)
    if scheme == "parameter-server":
        return 2 * (between(ranks) if nodes > 1 else within(ranks))
    if ranks & (ranks - 1) or per_node & (per_node - 1):
        return Exchange(scheme, ranks, ranks_per_node, links).seconds(round(num_bytes))
    found, share, distance = 0.0, 0.5, 1
    while distance < ranks:
        found += 2 * (within(share) if distance < per_node else between(share * per_node))
        share, distance = share / 2, distance * 2
    return found


def exposed_s(
    scheme: str,
    ranks: int,
    ranks_per_node: int,
    links: Links,
    num_bytes: float,
    compute_s: float,
) -> float:
    """What of the exchange computation does not hide.

    Buckets are exchanged while the backward pass makes the next one; the last bucket, and what
    takes longer than that pass, remains.
    """
    if ranks < 2 or not num_bytes:
        return 0.0
    buckets = max(1, round(num_bytes / BUCKET_BYTES))
    one = exchange_s(scheme, ranks, ranks_per_node, links, num_bytes / buckets)
    return max(one, buckets * one - BACKWARD_RATIO * compute_s)
