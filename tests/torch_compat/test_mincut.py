"""Minimum cuts by parts are those of networkx: same capacity, same sides."""

from __future__ import annotations

import math
from random import Random

import networkx
import pytest
from torch import fx

from remat_compiler.torch_compat import mincut
from remat_compiler.torch_compat.mincut import minimum_cut
from remat_compiler.torch_compat.patches import MINIMUM_CUT


def drawn_network(seed: int) -> networkx.DiGraph:
    """A network in layers, with many equal capacities, arcs of infinite capacity, and vertices that lead nowhere."""
    draw = Random(seed)
    network = networkx.DiGraph()
    count = draw.randrange(2, 30)
    network.add_nodes_from(["source", "sink"])
    for vertex in range(count):
        for end in draw.sample(range(count), min(draw.randrange(3), count)):
            if end != vertex and (end > vertex or draw.random() < 0.2):
                network.add_edge(vertex, end, capacity=draw.choice((1, 2, 2, 3, 5, math.inf)))
        if draw.random() < 0.25:
            network.add_edge("source", vertex, capacity=draw.choice((1, 4, math.inf)))
        if draw.random() < 0.25:
            network.add_edge(vertex, "sink", capacity=draw.choice((1, 4, math.inf)))
    return network


def refused(*_: object) -> mincut.Cut:
    raise AssertionError("the network was handed on")


@pytest.mark.parametrize("seeds", [range(300)])
def test_cuts_as_networkx_does(seeds: range) -> None:
    finite = 0
    for seed in seeds:
        network = drawn_network(seed)
        try:
            expected = networkx.minimum_cut(network, "source", "sink")
        except networkx.NetworkXUnbounded:
            with pytest.raises(networkx.NetworkXUnbounded):
                minimum_cut(network, "source", "sink")
            continue
        finite += 1
        assert minimum_cut(network, "source", "sink", otherwise=refused) == expected
    assert finite > 100


def test_fractions_and_large_parts_go_to_networkx(monkeypatch: pytest.MonkeyPatch) -> None:
    network = networkx.DiGraph()
    for start, end in (("source", 1), (1, 2), (2, "sink")):
        network.add_edge(start, end, capacity=0.5)
    with pytest.raises(AssertionError, match="handed on"):
        minimum_cut(network, "source", "sink", otherwise=refused)
    for _, _, attributes in network.edges(data=True):
        attributes["capacity"] = 2
    assert minimum_cut(network, "source", "sink", otherwise=refused)[0] == 2
    monkeypatch.setattr(mincut, "LARGEST_PART", 1)
    with pytest.raises(AssertionError, match="handed on"):
        minimum_cut(network, "source", "sink", otherwise=refused)


def test_what_is_patched_is_put_back() -> None:
    before = networkx.minimum_cut, fx.Graph.eliminate_dead_code
    with mincut.quick_partitioning():
        # torch 2.15 and later have a solver of their own
        assert (networkx.minimum_cut is not before[0]) is MINIMUM_CUT.needed
        assert fx.Graph.eliminate_dead_code is not before[1]
    assert (networkx.minimum_cut, fx.Graph.eliminate_dead_code) == before
