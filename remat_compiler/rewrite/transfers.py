"""Emit a plan's transfers: operators that move values off the device and back, at the steps that the plan names.

    after the step that makes it    handle = offload(x)
    before step `out_after`         offloaded(handle, x)             the last use of x, which is freed here
    before step `back_before`       value, ticket = prefetch(handle)
    before the step that reads it   fetch(value, ticket)             value stands for x from here on

`simulate.transfers` counts time by the same places.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.graph import CapturedGraph
from remat_compiler.ir.plan import Plan, Tier, Transfer
from remat_compiler.offload.operators import FETCH, OFFLOAD, OFFLOADED, PREFETCH
from remat_compiler.offload.place import Place
from remat_compiler.rewrite.emission import Emission
from remat_compiler.simulate.arrays import GraphArrays
from remat_compiler.simulate.transfers import TransferLife, transfer_lives


@dataclass(slots=True, eq=False)
class _Moving:
    """One transfer while it is emitted."""

    number: int
    transfer: Transfer
    life: TransferLife
    root: fx.Node
    size: tuple[fx.Node | int, ...] = ()
    value: fx.Node | None = None
    ticket: fx.Node | None = None


class EmittedTransfers:
    """Emits the transfers of a plan beside its steps.

    Args:
        captured: The joint graph.
        plan: A plan that passed `verify`.
        places: Where values of each tier go.
        out: Both graphs.
        current: The latest instance of each node of the joint graph; changed when a value is back.

    Attributes:
        storages: The storages that are moved.
    """

    def __init__(
        self,
        captured: CapturedGraph,
        plan: Plan,
        places: Mapping[Tier, Place],
        out: Emission,
        current: dict[fx.Node, fx.Node],
    ) -> None:
        roots = {storage: node for node, storage in captured.storage.items()}
        # Most plans move nothing, and need no arrays.
        arrays = GraphArrays.of(captured.graph) if plan.transfers else None
        lives = transfer_lives(arrays, plan.steps, plan.boundary, plan.transfers) if arrays else []
        self._moving = [
            _Moving(i, one, life, roots[one.storage]) for i, (one, life) in enumerate(zip(plan.transfers, lives))
        ]
        # By the number of the first transfer of an instance.
        self._handles: dict[int, fx.Node] = {}
        # Of what happens at one place, the copy that is needed first goes first, as in the model of time.
        self._out_first = sorted(self._moving, key=lambda one: (one.transfer.out_after, one.transfer.storage))
        self._back_first = sorted(self._moving, key=lambda one: (one.life.read, one.transfer.storage))
        # What is copied away comes back as the graph says, so it must lie in memory so.
        self.storages = {one.storage for one in plan.transfers}
        self._places, self._out, self._current, self._boundary = places, out, current, plan.boundary

    def before(self, step: int) -> None:
        """Emit what happens before a step runs; nothing that was emitted already."""
        self._each(self._out_first, self._offloaded, lambda one: one.transfer.out_after == step)
        self._each(self._back_first, self._prefetch, lambda one: one.transfer.back_before == step)
        self._each(self._back_first, self._fetch, lambda one: one.life.read == step)

    def after(self, step: int) -> None:
        """Emit what happens once a step has run."""
        at_end = step == self._boundary - 1
        # A copy out that only the backward waits for begins there.
        self._each(
            self._out_first,
            self._offload,
            lambda one: one.life.begun == step and not (at_end and one.transfer.out_after > self._boundary),
        )

    def end_forward(self) -> None:
        """Emit what the end of the forward waits for."""
        self._each(self._out_first, self._offloaded, lambda one: one.transfer.out_after == self._boundary)
        begun = [one for one in self._back_first if one.transfer.back_before < self._boundary]
        self._each(begun, self._fetch, lambda one: one.life.read == self._boundary)

    def begin_backward(self) -> None:
        """Emit what begins with the backward."""
        self._each(self._out_first, self._offload, lambda one: one.life.begun == self._boundary - 1)

    def _each(self, moving: list[_Moving], emit: Callable[[_Moving], None], due: Callable[[_Moving], bool]) -> None:
        for one in moving:
            if due(one):
                emit(one)

    def _offload(self, one: _Moving) -> None:
        # Later transfers of an instance find it off the device already, and so does the begin of the backward.
        if one.number == one.life.first and one.number not in self._handles:
            value = self._out.here(self._current[one.root])
            place = str(self._places[one.transfer.tier])
            handle = one.root.meta["val"].new_empty((1,), dtype=torch.int64, device="cpu")
            self._handles[one.number] = self._node(OFFLOAD, (value, place), f"offload_{one.root.name}", handle)
            one.size = tuple(self._length(value, dim, n) for dim, n in enumerate(one.root.meta["val"].shape))

    def _length(self, value: fx.Node, dim: int, length: int | torch.SymInt) -> fx.Node | int:
        """The length of a dimension of `value`: a node if it changes from call to call."""
        if isinstance(length, int):
            return length
        return self._node(torch.ops.aten.sym_size.int, (value, dim), f"length_of_{value.name}", length)

    def _offloaded(self, one: _Moving) -> None:
        # Emitted at the end of the forward, it is not emitted again before the first step of the backward.
        value = self._current.pop(one.root, None)
        # What was copied out before is freed at its last use.
        if value is not None and one.number == one.life.first:
            arguments = (self._out.here(self._handles[one.number]), self._out.here(value))
            self._node(OFFLOADED, arguments, f"offloaded_{one.root.name}", None)

    def _prefetch(self, one: _Moving) -> None:
        # Strides that leave gaps between elements are not kept by `lay_out`, which copies as a clone does.
        like, name = one.root.meta["val"].clone(), one.root.name
        handle, size = self._handles[one.life.first], self._moving[one.life.first].size
        arguments = (
            self._out.here(handle),
            [n if isinstance(n, int) else self._out.here(n) for n in size],
            torch_compat.memory_order(like),
            like.dtype,
            like.device,
        )
        ticket = like.new_empty((1,), dtype=torch.int64, device="cpu")
        both = self._node(PREFETCH, arguments, f"prefetch_{name}", (like, ticket))
        # With all that is known of the value itself.
        one.value = self._out.node(
            operator.getitem, (both, 0), {}, name=f"{name}_back", meta={**one.root.meta, "val": like}
        )
        one.ticket = self._node(operator.getitem, (both, 1), f"ticket_{name}", ticket)

    def _fetch(self, one: _Moving) -> None:
        if one.root not in self._current:
            assert one.value is not None and one.ticket is not None  # noqa: PT018 - both are set at once
            self._node(FETCH, (one.value, one.ticket), f"fetch_{one.root.name}", None)
            self._current[one.root] = one.value

    def _node(self, target: object, arguments: tuple[object, ...], name: str, value: object) -> fx.Node:
        return self._out.node(target, arguments, {}, name=name, meta={"val": value})
