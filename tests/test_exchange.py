"""Exchange schemes: executed on arrays they add up on every rank, and their bytes, rounds and times
are those of the formulas."""

import itertools
from fractions import Fraction
from math import log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import examples

from ioprof.errors import CommandError
from ioprof.train.accelerators.exchange import SCHEMES, Exchange, check_exchange
from ioprof.train.devices import Links

LENGTH = 2**4 * 3**2 * 5 * 7
"""Of the vector: every part of up to ten ranks is a whole number of elements."""
FAST = Links(bytes_per_s=10e9)
JOBS = st.integers(1, 10).flatmap(
    lambda ranks: st.tuples(
        st.just(ranks), st.sampled_from([size for size in range(1, ranks + 1) if ranks % size == 0])
    )
)


def messages(scheme: str, ranks: int, per_node: int):
    return list(SCHEMES[scheme](ranks, per_node)) if ranks > 1 else []


def exchanged(scheme: str, ranks: int, per_node: int) -> list[np.ndarray]:
    """What each participant holds in the end; a server begins with nothing."""
    values = [np.arange(LENGTH, dtype=np.int64) * (rank + 1) for rank in range(ranks)] + [
        np.zeros(LENGTH, np.int64)
    ]
    for each in messages(scheme, ranks, per_node):
        sent = []
        for message in each:
            begin, end = message.begin * LENGTH, message.end * LENGTH
            sent.append(values[message.source][int(begin) : int(end)].copy())
        for message, part in zip(each, sent, strict=True):
            where = slice(int(message.begin * LENGTH), int(message.end * LENGTH))
            if message.adds:
                values[message.destination][where] += part
            else:
                values[message.destination][where] = part
    return values[:ranks]


def sent_by(scheme: str, ranks: int, per_node: int) -> list[Fraction]:
    """Lengths of the gradients that each rank sends, and the server after them."""
    total = [Fraction(0)] * (ranks + 1)
    for message in itertools.chain.from_iterable(messages(scheme, ranks, per_node)):
        total[message.source] += message.end - message.begin
    return total


@pytest.mark.parametrize("scheme", SCHEMES)
@given(JOBS)
@settings(max_examples=examples(40), deadline=None)
def test_every_rank_ends_with_the_sum(scheme, job):
    """The messages are an all-reduce: whoever executes them has the sum of all ranks' vectors on
    each rank."""
    ranks, per_node = job
    if scheme == "hierarchical" and LENGTH % (per_node * (ranks // per_node)):
        return
    expected = np.arange(LENGTH, dtype=np.int64) * sum(range(1, ranks + 1))
    assert all((expected == found).all() for found in exchanged(scheme, ranks, per_node))


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 10])
def test_a_ring_takes_two_rounds_less_per_rank_and_moves_the_least_bytes(ranks):
    """2(p-1) rounds, and each rank sends 2(p-1)/p of the gradients: the least that an all-reduce
    can (Patarasuk and Yuan)."""
    assert 2 * (ranks - 1) == len(messages("ring", ranks, ranks))
    assert [2 * Fraction(ranks - 1, ranks)] * ranks == sent_by("ring", ranks, ranks)[:ranks]


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_halving_and_doubling_takes_two_rounds_per_bit(ranks):
    """2 log2(p) rounds, with the bytes of a ring (Rabenseifner)."""
    assert 2 * log2(ranks) == len(messages("halving-doubling", ranks, ranks))
    assert [2 * Fraction(ranks - 1, ranks)] * ranks == sent_by("halving-doubling", ranks, ranks)[
        :ranks
    ]


@pytest.mark.parametrize(("ranks", "power"), [(3, 2), (5, 4), (6, 4), (7, 4)])
def test_ranks_beyond_a_power_of_two_add_two_rounds(ranks, power):
    """The others first give theirs to a neighbour, and get the sum in the end (Thakur et al.)."""
    assert 2 * log2(power) + 2 == len(messages("halving-doubling", ranks, ranks))


@pytest.mark.parametrize(("nodes", "per_node"), [(2, 4), (4, 2), (3, 3)])
def test_rings_in_nodes_and_between_them(nodes, per_node):
    """2(k-1) rounds within nodes with 2(k-1)/k of the gradients, 2(n-1) between them with 2(n-1)/n
    of a k-th each."""
    ranks = nodes * per_node
    assert 2 * (per_node - 1) + 2 * (nodes - 1) == len(messages("hierarchical", ranks, per_node))
    expected = 2 * Fraction(per_node - 1, per_node) + 2 * Fraction(nodes - 1, nodes) / per_node
    assert [expected] * ranks == sent_by("hierarchical", ranks, per_node)[:ranks]


@pytest.mark.parametrize("ranks", [2, 4, 7])
def test_a_server_sends_and_receives_all_of_it(ranks):
    """Two rounds: each rank sends its gradients once, the server sends them as often as there are
    ranks."""
    assert 2 == len(messages("parameter-server", ranks, ranks))
    assert [*[1] * ranks, ranks] == sent_by("parameter-server", ranks, ranks)


BYTES = 100_000_000


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_times_within_a_node_are_the_formulas(ranks):
    """Latency per round, and bytes over the device's own link; a server's link carries all of it,
    both ways at once."""
    links = Links(10e9, 5e-6)
    seconds = {scheme: Exchange(scheme, ranks, ranks, links).seconds(BYTES) for scheme in SCHEMES}
    moved = 2 * BYTES * (ranks - 1) / ranks / 10e9
    expected = {
        "ring": 2 * (ranks - 1) * 5e-6 + moved,
        "halving-doubling": 2 * log2(ranks) * 5e-6 + moved,
        "hierarchical": 2 * (ranks - 1) * 5e-6 + moved,
        "parameter-server": 2 * 5e-6 + 2 * ranks * BYTES / 10e9,
    }
    assert pytest.approx(expected, rel=1e-9) == seconds


def test_times_between_nodes_are_the_formulas():
    """Two nodes of four: a ring crosses the network with an eighth per round; halving crosses it in
    its last round only, four ranks at once; rings between nodes carry a quarter each, four at once;
    a server gets everything over the network."""
    links = Links(10e9, 5e-6, network_bytes_per_s=1e9, network_latency_s=20e-6)
    seconds = {scheme: Exchange(scheme, 8, 4, links).seconds(BYTES) for scheme in SCHEMES}
    within, between = BYTES / 10e9, BYTES / 1e9
    expected = {
        "ring": 14 * (20e-6 + between / 8),
        "halving-doubling": 2 * (2 * 5e-6 + within * 3 / 4) + 2 * (20e-6 + 4 * between / 8),
        "hierarchical": 6 * (5e-6 + within / 4) + 2 * (20e-6 + 4 * between / 4 / 2),
        "parameter-server": 2 * (20e-6 + 8 * between),
    }
    assert pytest.approx(expected, rel=1e-9) == seconds


@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_rank_exchanges_nothing(scheme):
    """Whatever the scheme, an exchange with oneself takes no time."""
    assert 0 == Exchange(scheme, 1, 1, FAST).seconds(BYTES)


def test_what_cannot_be_is_refused():
    """Nodes that the ranks do not fill."""
    with pytest.raises(CommandError, match="6 ranks do not fill nodes of 4"):
        check_exchange("hierarchical", 6, 4)
