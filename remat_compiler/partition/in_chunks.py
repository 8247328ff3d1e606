"""How many chunks the losses of a joint graph are computed in, if the plan is to say: the cheapest plan that fits.

    whole: fits and adds nothing? ─► yes: whole, as without this option
              │ no
              ▼
    4, 16, 64 chunks, each planned as a problem of its own ─► of those that fit the least time, else the least peak

Each problem has the time of its smaller products and further kernels in its costs, so the times can be compared.  More
chunks than those of a plan that fits and recomputes nothing only take longer, and are not tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import Baseline, NoPlan, Partition

COUNTS = (4, 16, 64)
"""Numbers of chunks that are planned for."""
Cut = Callable[[fx.GraphModule, PartitionRequest], Partition | None]
"""Cuts a joint graph by a request; `None` if that asks for chunks and there is nothing to compute in them."""


def cheapest_in_chunks(joint: fx.GraphModule, request: PartitionRequest, cut: Cut) -> Partition:
    """The partition in as many chunks as serve the budget best.

    Args:
        joint: Joint graph; changed in place.
        request: The budget, in bytes; without one, losses stay whole.
        cut: Cuts the graph.

    Raises:
        NoPlan: Nothing fits in any number of chunks.
    """
    budget_bytes = request.budget_bytes
    spare = None if budget_bytes is None else torch_compat.copy_module(joint)
    found: list[Partition] = []
    refusals: list[NoPlan] = []

    def tried(graph: fx.GraphModule, chunks: int) -> bool:
        """Whether there was something to try."""
        try:
            # Torch's own partition would be compiled as the stock backend does, which may join chunks again.
            may_be_native = request.may_be_native and chunks == 1
            made = cut(graph, replace(request, chunks=chunks, may_be_native=may_be_native))
        except NoPlan as refused:
            refusals.append(refused)
            return True
        if made is not None:
            found.append(made)
        return made is not None

    tried(joint, 1)
    for chunks in COUNTS:
        if spare is None or budget_bytes is None or any(_is_free(one, budget_bytes) for one in found):
            break
        if not tried(torch_compat.copy_module(spare), chunks):
            break
    if not found:
        # Without a plan, a refusal knows no peak.
        raise min(refusals, key=lambda one: (one.result.plan is None, one.needed_bytes))
    best = min(found, key=lambda one: _rank(one, budget_bytes))
    # Without a budget the losses would be whole: the first try, or the first refusal.
    if found[0].chunked:
        whole = refusals[0].problem
        return replace(best, before=Baseline.saving_all(whole.graph, whole.costs))
    return replace(best, before=found[0].before)


def _is_free(made: Partition, budget_bytes: int) -> bool:
    """Whether a partition fits and recomputes nothing."""
    return made.peak_bytes <= budget_bytes and not made.added_ns


def _rank(made: Partition, budget_bytes: int | None) -> tuple[bool, int, int]:
    """What fits before what does not; then by time, or by peak."""
    time_ns = made.step_ns + made.added_ns
    if budget_bytes is None or made.peak_bytes <= budget_bytes:
        return False, time_ns, made.peak_bytes
    return True, made.peak_bytes, time_ns
