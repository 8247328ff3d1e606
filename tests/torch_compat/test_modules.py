"""Modules write their code on demand, and what is patched meanwhile is put back."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from remat_compiler.torch_compat.modules import copy_module, copying_nodes, erase_dead_code, new_module, without_code
from torch_compat.test_duplicates import drawn_graph


def double(x: torch.Tensor) -> torch.Tensor:
    return x + x


def test_a_copy_runs_and_is_apart() -> None:
    module = fx.symbolic_trace(double)
    copied = copy_module(module)
    node = next(n for n in copied.graph.nodes if n.op == "call_function")
    node.target = torch.mul
    copied.recompile()
    assert torch.equal(module(torch.full((2,), 3.0)), torch.full((2,), 6.0))
    assert torch.equal(copied(torch.full((2,), 3.0)), torch.full((2,), 9.0))


def test_a_copy_takes_its_inputs_in_the_same_structure_and_warns_of_nothing() -> None:
    """Joint graphs take a list of inputs and one of tangents, which torch's own copy of a graph would copy, too."""
    module = make_fx(lambda inputs, tangents: [inputs[0] * tangents[0]], pre_dispatch=False)(
        [torch.ones(2)], [torch.ones(2)]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copied = copy_module(module)
    (found,) = copied([torch.full((2,), 3.0)], [torch.full((2,), 2.0)])
    assert torch.equal(found, torch.full((2,), 6.0))


def test_modules_made_without_code_get_it_on_demand() -> None:
    graph = fx.symbolic_trace(double).graph
    recompile = fx.GraphModule.recompile
    with without_code():
        with without_code():
            silent = fx.GraphModule(torch.nn.Module(), graph)
        assert fx.GraphModule.recompile is not recompile
    assert fx.GraphModule.recompile is recompile
    assert "forward" not in type(silent).__dict__
    assert torch.equal(new_module(silent, graph)(torch.ones(2)), torch.full((2,), 2.0))


def test_new_nodes_are_searched_again_afterwards() -> None:
    pytree = getattr(fx.graph, "pytree", None)
    with pytest.raises(KeyError), copying_nodes(), copying_nodes():
        raise KeyError
    assert getattr(fx.graph, "pytree", None) is pytree
    with copying_nodes(), warnings.catch_warnings():
        warnings.simplefilter("error")
        copied = copy.deepcopy(drawn_graph(0, False))
    copied.lint()


@pytest.mark.parametrize("mutations", [False, True])
def test_dead_code_is_what_torch_takes_for_it(mutations: bool) -> None:
    for seed in range(20):
        graph = drawn_graph(seed, mutations)
        expected = copy.deepcopy(graph)
        expected.eliminate_dead_code()
        erase_dead_code(graph)
        assert [n.name for n in graph.nodes] == [n.name for n in expected.nodes]


def test_outputs_to_come_are_no_dead_code() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    kept, dropped = graph.call_function(torch.sin, (x,)), graph.call_function(torch.cos, (x,))
    erase_dead_code(graph, [kept])
    assert kept in list(graph.nodes)
    assert dropped not in list(graph.nodes)
