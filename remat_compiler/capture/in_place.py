"""Operators that write their result into the memory of an argument whose life ends there, under every plan.

Inductor lets its loops do so by itself:

    gelu_backward    reads a gradient g and a saved value x of one shape, both for the last time
                     the result takes over the memory of one of them

Under every plan, an argument's life ends at the last operator of the backward that reads it, because operators of the
backward run once.  Inductor also requires that both have the same size and type, and that the loop reads the argument
at the place that it writes (`can_inplace` in `torch/_inductor/scheduler.py`).  Other readers without a kernel in
between may become part of the same loop and run after it, unless the operator needs their results.

For the interpreter `rewrite.overwriting` does so, by the rules of `capture.overwriting`.  There the backward may run in
another order than the program's, so an argument's life is sure to end at an operator only if that needs the results of
all other readers; and if the backward makes the argument: what is saved for the backward is never overwritten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.graph import CapturedGraph
from remat_compiler.capture.overwriting import overwritings, touches_plainly
from remat_compiler.capture.storages import readers as readers_of
from remat_compiler.ir.graph import Op, OpId, Phase, StorageId, StorageKind

_ENDS = frozenset({StorageKind.ACTIVATION, StorageKind.TEMPORARY})
"""Kinds whose life may end in the backward: neither held by the caller, nor handed in by autograd."""


def bytes_taken_over(captured: CapturedGraph) -> tuple[int, ...]:
    """For each operator, the bytes of an argument whose memory Inductor gives to its result; 0 for most operators."""
    ops, storages, readers = captured.graph.ops, captured.graph.storages, _readers(captured)
    owner = {s: root for root, s in captured.storage.items()}
    taken, nearest = [0] * len(ops), OpId(-1)
    for op, loop, node, inside in zip(ops, captured.loops, captured.main, captured.nodes):
        # A kernel ends every fused loop before it.
        if not loop:
            nearest = op.id
        if node in captured.filled:
            taken[op.id] = storages[op.writes[0]].size_bytes
            continue
        # Only backward operators are sure to run once, and Inductor matches one result with one argument.
        if not loop or op.phase is not Phase.BACKWARD or len(op.writes) != 1:
            continue
        size_bytes = storages[op.writes[0]].size_bytes
        ending = [s for s in op.reads if storages[s].kind in _ENDS and _ends(op, readers[s], nearest)]
        # Inductor reuses memory of equal size only.
        same = [owner[s] for s in ending if s in owner and storages[s].size_bytes == size_bytes]
        # Of memory that Inductor fills and then changes, no loop takes over anything.
        same = [root for root in same if not torch_compat.facts_of(root.target).fills_first]
        if any(_read_in_place(root, node, inside, captured.roots) for root in same):
            taken[op.id] = size_bytes
    return tuple(taken)


def bytes_overwritten(captured: CapturedGraph) -> dict[fx.Node, int]:
    """Bytes of an argument that operators overwrite under the interpreter, by the node of each that does."""
    storages, readers = captured.graph.storages, _readers(captured)
    overwritten: dict[fx.Node, int] = {}
    for op, node in zip(captured.graph.ops, captured.main):
        if captured.fused or op.phase is not Phase.BACKWARD or len(op.writes) != 1:
            continue
        for one in overwritings(node, captured.roots):
            storage = captured.storage.get(one.root)
            if storage is None or storages[storage].kind is not StorageKind.TEMPORARY:
                continue
            others = [reader for reader in readers[storage] if reader is not op]
            plainly = all(map(touches_plainly, readers_of(one.root, captured.roots)))
            if plainly and all(_runs_before(reader, op) for reader in others):
                overwritten[node] = storages[op.writes[0]].size_bytes
    return overwritten


def _runs_before(reader: Op, op: Op) -> bool:
    """Whether a reader runs once, and before `op` in every order of the backward."""
    return reader.phase is Phase.BACKWARD and not set(reader.writes).isdisjoint(op.reads)


def _readers(captured: CapturedGraph) -> dict[StorageId, list[Op]]:
    """Operators that read each storage, in order."""
    readers: dict[StorageId, list[Op]] = defaultdict(list)
    for op in captured.graph.ops:
        for storage in op.reads:
            readers[storage].append(op)
    return readers


def _ends(op: Op, readers: Sequence[Op], nearest: OpId) -> bool:
    """Whether `op` is the last reader, and no other reader can run after it in the same fused loop."""
    near = [r for r in readers if r.id > nearest and r is not op and r.phase is not Phase.FORWARD]
    # Readers that the operator depends on have run before it, in the same loop or earlier.
    return readers[-1] is op and all(not set(r.writes).isdisjoint(op.reads) for r in near)


def _read_in_place(root: fx.Node, result: fx.Node, inside: Sequence[fx.Node], roots: Mapping[fx.Node, fx.Node]) -> bool:
    """Whether the nodes `inside` read the memory of `root` only at the place that they write of `result`."""
    loops = [node for node in inside if roots.get(node) is not root]  # views of `root` compute nothing
    read = [a for node in loops for a in node.all_input_nodes if roots.get(a) is root]
    # A read at another index would see what the loop has overwritten already.
    # Of a value that is padded as it is written, a view of the first elements may be read.
    part = torch_compat.is_padded_in_loop(result)
    return bool(read) and all(_same_layout(a, result, part) for a in read)


def _same_layout(a: fx.Node, b: fx.Node, part: bool) -> bool:
    """Whether both values have one type, and equal indices lie at equal places in memory; `a` may be a part of `b`."""
    x, y = a.meta.get("val"), b.meta.get("val")
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        return False
    return torch_compat.have_one_layout(x, y, part=part)
