"""How an emulated job exchanges gradients: each scheme as the messages of its algorithm, and the
time of these over the links.

    ring               reduce-scatter and all-gather around one ring; 2(p-1) rounds, each rank sends
                       2L(p-1)/p (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009)
    halving-doubling   recursive halving, then doubling, of the vector; 2 log2(p) rounds, 2L(p-1)/p;
                       two more rounds where p is no power of two (Rabenseifner; Thakur,
                       Rabenseifner and Gropp, Int. J. High Perf. Comput. Appl. 19(1), 2005)
    hierarchical       a ring reduce-scatter within each node, rings across nodes on each part, a
                       ring all-gather within each node; 2(k-1) + 2(n-1) rounds for n nodes of k
                       ranks (Sergeev and Del Balso, arXiv 1802.05799)
    parameter-server   all ranks send to one server, which sends the sum back; 2 rounds, 2pL through
                       the server's link (Li et al., OSDI 2014)

L is the length of the gradients, p the number of ranks. A round ends when its last message has
arrived. A message takes the link's latency, and its bytes over the bandwidth that it has: a
device's own link within a node, and between nodes the node's, which all its messages share.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final, NamedTuple

from ioprof.errors import CommandError
from ioprof.train.devices import Links


class Message(NamedTuple):
    """A part of the gradients from one rank to another."""

    source: int
    destination: int
    begin: Fraction
    """Of the part, as a share of all gradients."""
    end: Fraction
    adds: bool
    """Whether the receiver adds it to what it has; else it replaces that."""


Round = list[Message]
"""Messages that are sent at the same time."""
_WHOLE: Final = (Fraction(0), Fraction(1))


def ring(num_ranks: int, _ranks_per_node: int) -> Iterator[Round]:
    """The messages of a ring all-reduce, of one bucket."""
    ranks = range(num_ranks)
    yield from _ring(ranks, _WHOLE, scatter=True)
    yield from _ring(ranks, _WHOLE, scatter=False)


def halving_doubling(num_ranks: int, _ranks_per_node: int) -> Iterator[Round]:
    """The messages of recursive halving and doubling. Neighbours exchange the largest parts, so
    that these stay within a node.
    """
    active = 1 << (num_ranks.bit_length() - 1)
    extra = num_ranks - active
    if extra:
        yield [Message(2 * place + 1, 2 * place, *_WHOLE, adds=True) for place in range(extra)]
    ranks = [*range(0, 2 * extra, 2), *range(2 * extra, num_ranks)]
    parts = [_WHOLE] * active
    rounds: list[Round] = []
    distance = 1
    while distance < active:
        halves = [(begin, (begin + end) / 2, end) for begin, end in parts]
        keeps_first = [not place & distance for place in range(active)]
        sent = [
            (middle, end) if first else (begin, middle)
            for first, (begin, middle, end) in zip(keeps_first, halves, strict=True)
        ]
        parts = [
            (begin, middle) if first else (middle, end)
            for first, (begin, middle, end) in zip(keeps_first, halves, strict=True)
        ]
        yield [
            Message(ranks[place], ranks[place ^ distance], *sent[place], adds=True)
            for place in range(active)
        ]
        rounds.append(
            [
                Message(ranks[place], ranks[place ^ distance], *parts[place], adds=False)
                for place in range(active)
            ]
        )
        distance *= 2
    yield from reversed(rounds)
    if extra:
        yield [Message(2 * place, 2 * place + 1, *_WHOLE, adds=False) for place in range(extra)]


def hierarchical(num_ranks: int, ranks_per_node: int) -> Iterator[Round]:
    """The messages of rings within nodes, and of rings across nodes between the ranks that hold the
    same part.
    """
    nodes = [range(first, first + ranks_per_node) for first in range(0, num_ranks, ranks_per_node)]
    yield from _together([_ring(node, _WHOLE, scatter=True) for node in nodes])
    for scatter in (True, False):
        across = []
        for place in range(ranks_per_node):
            owned = (place + 1) % ranks_per_node
            part = Fraction(owned, ranks_per_node), Fraction(owned + 1, ranks_per_node)
            across.append(_ring([node[place] for node in nodes], part, scatter=scatter))
        yield from _together(across)
    yield from _together([_ring(node, _WHOLE, scatter=False) for node in nodes])


def parameter_server(num_ranks: int, _ranks_per_node: int) -> Iterator[Round]:
    """The messages to the server, which is the participant after the last rank, and from it."""
    yield [Message(rank, num_ranks, *_WHOLE, adds=True) for rank in range(num_ranks)]
    yield [Message(num_ranks, rank, *_WHOLE, adds=False) for rank in range(num_ranks)]


SCHEMES: Final[dict[str, Callable[[int, int], Iterator[Round]]]] = {
    "ring": ring,
    "halving-doubling": halving_doubling,
    "hierarchical": hierarchical,
    "parameter-server": parameter_server,
}
"""By the name that `--exchange` takes."""


def check_exchange(scheme: str, num_ranks: int, ranks_per_node: int) -> None:
    """CommandError for ranks that do not fill their nodes where the scheme needs that."""
    if scheme == "hierarchical" and num_ranks % ranks_per_node:
        what = f"{num_ranks} ranks do not fill nodes of {ranks_per_node}"
        raise CommandError(
            f"--exchange hierarchical: {what}; choose --ranks-per-node so that they do"
        )


@dataclass(frozen=True)
class Exchange:
    """The exchange of one emulated job."""

    scheme: str
    num_ranks: int
    ranks_per_node: int
    links: Links

    def seconds(self, num_bytes: int) -> float:
        """How long one bucket of gradients takes, from the moment at which the last rank has it."""
        return _seconds(self, num_bytes)

    def node(self, rank: int) -> int:
        """The node of a rank. A server has one of its own where there are several."""
        nodes = -(-self.num_ranks // self.ranks_per_node)
        return rank // self.ranks_per_node if rank < self.num_ranks else nodes if nodes > 1 else 0


@lru_cache(maxsize=256)
def _seconds(exchange: Exchange, num_bytes: int) -> float:
    if exchange.num_ranks < 2:
        return 0.0
    rounds = SCHEMES[exchange.scheme](exchange.num_ranks, exchange.ranks_per_node)
    return sum(_round_s(exchange, messages, num_bytes) for messages in rounds)


def _round_s(exchange: Exchange, messages: Round, num_bytes: int) -> float:
    """How long a round takes: as long as its busiest link, each of which sends and receives at the
    same time.
    """
    within, between = (
        defaultdict[tuple[str, int], Fraction](Fraction),
        defaultdict[tuple[str, int], Fraction](Fraction),
    )
    for message in messages:
        nodes = exchange.node(message.source), exchange.node(message.destination)
        is_within = nodes[0] == nodes[1]
        ends = (message.source, message.destination) if is_within else nodes
        for way, end in zip(("out", "in"), ends, strict=True):
            (within if is_within else between)[way, end] += message.end - message.begin
    links, times = exchange.links, [0.0]
    if within:
        times.append(links.latency_s + float(max(within.values())) * num_bytes / links.bytes_per_s)
    if between:
        times.append(
            links.network_latency_s
            + float(max(between.values())) * num_bytes / links.network_bytes_per_s
        )
    return max(times)


def _ring(
    ranks: "range | list[int]", part: tuple[Fraction, Fraction], *, scatter: bool
) -> Iterator[Round]:
    """A reduce-scatter around a ring, after which rank i holds piece i + 1 of the part; or the
    all-gather that follows it.
    """
    count = len(ranks)
    begin, length = part[0], (part[1] - part[0]) / count
    for turn in range(count - 1):
        pieces = [(place + (0 if scatter else 1) - turn) % count for place in range(count)]
        yield [
            Message(
                ranks[place],
                ranks[(place + 1) % count],
                begin + piece * length,
                begin + (piece + 1) * length,
                adds=scatter,
            )
            for place, piece in enumerate(pieces)
        ]


def _together(several: list[Iterator[Round]]) -> Iterator[Round]:
    """Rounds of several groups of ranks, which go on at the same time."""
    for rounds in zip(*several, strict=True):
        yield [message for each in rounds for message in each]
