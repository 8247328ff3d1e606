"""The calling convention of a forward and a backward graph: the order of inputs and outputs, and torch's notes on them.

torch's own extraction decides it while it splits a joint graph, of which it makes three copies.  Here both graphs
exist already, so torch splits an *outline* of their joint graph, in which one node stands for the whole backward:

    inputs ─► each value that is returned or saved ─► backward ─► each gradient
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import fx
from torch._functorch import partitioners
from torch.utils._ordered_set import OrderedSet

from remat_compiler.torch_compat.mincut import quick_partitioning
from remat_compiler.torch_compat.modules import erase_dead_code, new_module, without_code
from remat_compiler.torch_compat.patches import QUANTIZATION
from remat_compiler.torch_compat.patching import original, settings

_QUANTIZATION = "activation_quantization_aten_pass"


@dataclass(frozen=True, slots=True, eq=False)
class Halves:
    """A forward and a backward graph that have no outputs yet.

    Attributes:
        joint: The joint graph that both were made from.
        forward: Forward graph.
        backward: Backward graph, with a placeholder for each value of the forward that it reads.
        crossing: Those values and their placeholders.
        symbols: Nodes of the forward that hold no tensor: sizes, and numbers computed from them.
        forward_outputs: Values that the forward returns to its caller: nodes of `forward`, or constants.
        backward_outputs: Values that the backward returns: nodes of `backward`, or constants.
    """

    joint: fx.GraphModule
    forward: fx.Graph
    backward: fx.Graph
    crossing: dict[fx.Node, fx.Node]
    symbols: frozenset[fx.Node]
    forward_outputs: tuple[Any, ...]
    backward_outputs: tuple[Any, ...]


def finished_modules(halves: Halves) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Modules of `halves` in the convention of AOTAutograd's partitioners; the graphs get their outputs."""
    saved = _without_dead_code(halves)
    outline = _Outline(halves, saved)
    tensors = [n for n in saved if n not in halves.symbols and not is_opaque(n)]
    opaque = [outline.of[n] for n in saved if is_opaque(n)]
    # An argument that torch 2.11 does not have, nor any opaque node.
    keywords: dict[str, Any] = {"saved_opaque_nodes": opaque} if opaque else {}
    static = [n for n in halves.forward.find_nodes(op="placeholder") if n.meta.get("is_static_input")]
    # torch would quantize the saved values of the outline; below, they are quantized in the graphs themselves.
    options = original(QUANTIZATION)
    others = {k: v for k, v in options.items() if k != _QUANTIZATION}
    with settings({QUANTIZATION: others}), without_code(), quick_partitioning():
        forward, backward = partitioners._extract_fwd_bwd_modules(
            new_module(halves.joint, outline.graph),
            [outline.of[n] for n in tensors],
            saved_sym_nodes=[outline.of[n] for n in saved if n in halves.symbols],
            num_fwd_outputs=len(halves.forward_outputs),
            **_static_nodes(partitioners._extract_fwd_bwd_modules, [outline.of[n] for n in static]),
            **keywords,
        )
    _adopt(halves.forward, forward.graph)
    _adopt(halves.backward, backward.graph)
    # torch marks every operator of the backward, of which the outline has one.
    notes = next(n.meta for n in backward.graph.nodes if n.target is outline.backward.target)
    for node in halves.backward.nodes:
        if node.op in ("call_function", "get_attr"):
            node.meta.update(notes)
    modules = new_module(halves.joint, halves.forward), new_module(halves.joint, halves.backward)
    if _QUANTIZATION in options:
        quantize: Any = partitioners.enable_activation_quantization
        count = {"num_fwd_outputs": len(halves.forward_outputs)}
        known = count if "num_fwd_outputs" in signature(quantize).parameters else {}  # not a parameter in every version
        quantize(tensors, *modules, **known, **_static_nodes(quantize, static))
    return modules


def _static_nodes(function: Callable[..., Any], nodes: Iterable[fx.Node]) -> dict[str, Any]:
    """The inputs that stay where they are, as an argument of a function of torch; nothing where it takes none."""
    name = "static_lifetime_input_nodes"
    return {name: OrderedSet(nodes)} if name in signature(function).parameters else {}


def is_opaque(node: fx.Node) -> bool:
    """Whether the node's value is an opaque object (torch 2.12 and later)."""
    check = getattr(partitioners, "is_opaque_node", None)
    return bool(check(node)) if check is not None else False


class _Outline:
    """The outline of a joint graph that torch splits.

    Attributes:
        graph: The graph.
        of: The node that stands for a node of the forward, or for an input or output of the backward.
        backward: The node that stands for the backward; it is no dead code, whatever the backward returns.
    """

    def __init__(self, halves: Halves, saved: list[fx.Node]) -> None:
        self.graph = fx.Graph()
        self.of: dict[fx.Node, fx.Node] = {}
        # Symbols even if nothing saves them: torch adds those that the sizes of saved values depend on.
        shown = {*saved, *_nodes(halves.forward_outputs), *halves.symbols}
        # Without arguments: only which values there are, their order and their notes matter.
        for node in halves.forward.nodes:
            if node.op == "placeholder" or node in shown:
                self._show(node, ())
        for node, placeholder in halves.crossing.items():
            self.of[placeholder] = self.of[node]
        # The rest: tangents, and random seeds and offsets of the backward.
        for node in halves.backward.find_nodes(op="placeholder"):
            if node not in self.of:
                self._show(node, ())
        # It reads all that is saved, or torch would drop values as unused.  `_assert` has an effect, so it stays.
        read = [self.of[n] for n in (*saved, *halves.backward.find_nodes(op="placeholder"))]
        self.backward = self.graph.call_function(torch._assert, tuple(dict.fromkeys(read)))
        for node in _nodes(halves.backward_outputs):
            if node not in self.of:
                self._show(node, (self.backward,))
        outputs = (*halves.forward_outputs, *halves.backward_outputs)
        shown_outputs = tuple(self.of[o] if isinstance(o, fx.Node) else o for o in outputs)
        # The descriptions of the joint outputs, which torch divides between the two graphs.
        self.graph.output(shown_outputs).meta = dict(halves.joint.graph.output_node().meta)

    def _show(self, node: fx.Node, args: tuple[fx.Node, ...]) -> None:
        is_input = node.op == "placeholder"
        op, target = ("placeholder", node.target) if is_input else ("call_function", _value_of)
        # Under the same name: `_adopt` finds the node by it.
        self.of[node] = self.graph.create_node(op, target, args, {}, node.name)
        self.of[node].meta = dict(node.meta)


def _value_of(*_: object) -> None:
    """Target of a node that stands for a value."""


def _nodes(values: Iterable[Any]) -> list[fx.Node]:
    return [v for v in values if isinstance(v, fx.Node)]


def _without_dead_code(halves: Halves) -> list[fx.Node]:
    """Erase dead code in both graphs; the saved values that remain, in the order of the forward."""
    # The backward first: values that only its dead code read need not be saved, nor computed.
    outputs = _nodes(halves.backward_outputs)
    erase_dead_code(halves.backward, outputs)
    for node, placeholder in list(halves.crossing.items()):
        if not placeholder.users and placeholder not in outputs:
            halves.backward.erase_node(placeholder)
            del halves.crossing[node]
    saved = sorted(halves.crossing)
    erase_dead_code(halves.forward, [*_nodes(halves.forward_outputs), *saved])
    return saved


def _adopt(graph: fx.Graph, convention: fx.Graph) -> None:
    """Give `graph` the inputs, outputs and notes of `convention`, whose nodes have the same names."""
    named = {node.name: node for node in graph.nodes}
    before = None
    for like in convention.find_nodes(op="placeholder"):
        # The graph lacks inputs that torch adds: symbols that sizes of saved values depend on.
        node = named.get(like.name) or graph.placeholder(like.name)
        node.meta = dict(like.meta)
        # In torch's order: the first input goes before all other nodes, each further one right after its predecessor.
        if before is not None:
            before.append(node)
        elif node.prev.op != "root":
            next(iter(graph.nodes)).prepend(node)
        before = named[like.name] = node
    wanted = convention.output_node()
    returned: Any = wanted.args[0]
    outputs = tuple(named[o.name] if isinstance(o, fx.Node) else o for o in returned)
    graph.output(outputs).meta = dict(wanted.meta)
    graph.lint()
