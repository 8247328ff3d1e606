"""The scalar tangent taken out: gradients computed with 1 in its place, and multiplied by it where they leave.

    grad = mul(p, div(t, n))            grad' = mul(p, div(1, n))
    dw = mm(grad, h)                    dw = mul(mm(grad', h), t)

Where the forward ends in a scalar loss, all its gradients depend on the tangent `t` by a factor only.  With 1 in its
place they depend on nothing that the backward is given, so that one chunk can hold the loss and its gradient.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.operators import has_tensor
from remat_compiler.capture.phases import ancestors
from remat_compiler.chunks.axis import argument, is_zero, results_of
from remat_compiler.chunks.cut import operands
from remat_compiler.chunks.indexing import GATHERS, SCATTERS
from remat_compiler.chunks.writing import call, call_like

_aten = torch.ops.aten
_prims = torch.ops.prims


def scalar_tangents(graph: fx.Graph) -> list[fx.Node]:
    """The gradients of scalars that autograd hands to the backward."""
    tangents = filter(torch_compat.is_tangent, graph.find_nodes(op="placeholder"))
    values = ((node, node.meta.get("val")) for node in tangents)
    return [n for n, v in values if isinstance(v, torch.Tensor) and v.dim() == 0 and v.dtype.is_floating_point]


def multiples_of(graph: fx.Graph, tangent: fx.Node) -> set[fx.Node]:
    """The tangent, and all that is known to be a multiple of it: the same with 1 in its place, times the tangent."""
    found, dependent = {tangent}, depending_on(graph, [tangent])
    for node in graph.nodes:
        given = dependent.intersection(node.all_input_nodes)
        if node.op == "call_function" and given and given <= found and _is_multiple(node, found):
            found.add(node)
    return found


def depending_on(graph: fx.Graph, sources: Iterable[fx.Node]) -> set[fx.Node]:
    """These nodes, and all that is computed from them."""
    found = set(sources)
    for node in graph.nodes:
        if not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def take_out(graph: fx.Graph, tangent: fx.Node, leaving: Iterable[fx.Node]) -> None:
    """Compute these multiples of the tangent from 1, and multiply them by it (in place).

    Args:
        graph: A joint graph.
        tangent: A scalar tangent.
        leaving: Multiples of it; what leads to them alone is dead afterwards, and erased.
    """
    factored = multiples_of(graph, tangent)
    units: dict[fx.Node, fx.Node] = {}
    wanted = list(leaving)
    needed = ancestors(wanted, factored)
    for node in list(graph.nodes):
        if node not in needed:
            continue
        place = next(user for user in graph.nodes if user.op != "placeholder") if node is tangent else node
        with graph.inserting_before(place):
            units[node] = _one(graph, tangent) if node is tangent else _unit(graph, node, units)
    for node in wanted:
        with graph.inserting_before(node.next):
            scaled = call(graph, _aten.mul.Tensor, (units[node], tangent), like=node)
        scaled.meta["partitioner_tag"] = "is_backward"
        node.replace_all_uses_with(scaled)
    graph.eliminate_dead_code()


def _one(graph: fx.Graph, tangent: fx.Node) -> fx.Node:
    value = tangent.meta["val"]
    return call(graph, _aten.full.default, ([], 1), like=tangent, dtype=value.dtype, device=value.device)


def _unit(graph: fx.Graph, node: fx.Node, units: dict[fx.Node, fx.Node]) -> fx.Node:
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda one: units.get(one, one))
    return call_like(graph, node, args, kwargs)


def _is_multiple(node: fx.Node, multiples: set[fx.Node]) -> bool:
    """Whether the operator gives `t` times the same for `t` times its operands that are multiples."""
    if not has_tensor(node):
        return False
    kinds = {value.dtype for value in results_of(node) if isinstance(value, torch.Tensor)}
    # With few exponents, small gradients may be there only because the loss was scaled.
    if torch.float16 in kinds or not all(kind.is_floating_point for kind in kinds):
        return False
    return is_linear(node, [one in multiples for one in operands(node)])


def is_linear(node: fx.Node, scaled: list[bool]) -> bool:
    """Whether an operator is known to give `t` times the same for `t` times these of its operands; of 0, 0."""
    rule = _only_first if _is_gradient(node) else _LINEAR.get(node.target)
    return is_zero(node) or (rule is not None and rule(node, scaled))


def _is_gradient(node: fx.Node) -> bool:
    """Whether it is the gradient of an operator, given first the gradient of what that makes."""
    if not isinstance(node.target, torch._ops.OpOverload) or "_backward" not in node.target._schema.name:
        return False
    return node.target._schema.arguments[0].name.startswith("grad")


Rule = Callable[[fx.Node, list[bool]], bool]


def _only_first(node: fx.Node, scaled: list[bool]) -> bool:
    return scaled[0] and not any(scaled[1:])


def _one_factor(node: fx.Node, scaled: list[bool]) -> bool:
    return sum(scaled) == 1


def _every_term(node: fx.Node, scaled: list[bool]) -> bool:
    # A number that is added would have to be a multiple, too.
    terms = node.args[:2] if node.target in _SUMS_OF_TWO else (node.args[0],)
    numbers = (term for term in terms if not isinstance(term, fx.Node) or not has_tensor(term))
    return all(scaled) and all(isinstance(one, (int, float, list)) and one in (0, []) for one in numbers)


def _chosen(node: fx.Node, scaled: list[bool]) -> bool:
    """``where(condition, a, b)``: what is chosen is a multiple, or 0."""
    branches = zip(scaled[1:], operands(node)[1:])
    return not scaled[0] and all(one or is_zero(branch) for one, branch in branches)


def _filled(position: int) -> Rule:
    """The first operand, with zeros elsewhere: a number at this position of the arguments."""

    def rule(node: fx.Node, scaled: list[bool]) -> bool:
        value = argument(node, position)
        return _only_first(node, scaled) and isinstance(value, (int, float)) and value == 0

    return rule


def _scattered(node: fx.Node, scaled: list[bool]) -> bool:
    """``scatter(base, ..., source)``, ``slice_scatter(base, source, ...)`` and ``index_put(base, indices, source)``."""
    given = operands(node)
    source = len(given) - 1
    return all(scaled[i] or (i == 0 and is_zero(given[i])) for i in (0, source)) and not any(scaled[1:source])


_SUMS_OF_TWO = frozenset({_aten.add.Tensor, _aten.sub.Tensor})
_FIRST = (
    _aten.neg.default, _aten.sum.default, _aten.sum.dim_IntList, _aten.mean.default, _aten.mean.dim,
    _aten.view.default, _aten._unsafe_view.default, _aten.reshape.default, _aten.expand.default,
    _aten.permute.default, _aten.t.default, _aten.transpose.int, _aten.unsqueeze.default, _aten.squeeze.dim,
    _aten.squeeze.dims, _aten.squeeze.default, _aten.select.int, _aten.slice.Tensor, _aten.clone.default,
    _aten.alias.default, _aten.detach.default, _aten._to_copy.default, _prims.convert_element_type.default,
    _aten.cumsum.default, _aten.flip.default, _aten.gather.default, _aten.div.Tensor, _aten.div.Scalar,
    _aten.mul.Scalar, *GATHERS, operator.getitem,
)  # fmt: skip
_LINEAR: dict[object, Rule] = {
    **dict.fromkeys(_FIRST, _only_first),
    **dict.fromkeys((_aten.mul.Tensor, _aten.mm.default, _aten.bmm.default), _one_factor),
    **dict.fromkeys((*_SUMS_OF_TWO, _aten.cat.default), _every_term),
    _aten.where.self: _chosen,
    _aten.masked_fill.Scalar: _filled(2),
    _aten.scatter.value: _filled(3),
    _aten.constant_pad_nd.default: _filled(2),
    **dict.fromkeys((_aten.scatter.src, _aten.slice_scatter.default, *SCATTERS), _scattered),
}
