"""vDNN: move the inputs of convolutions off the device, layer by layer, and recompute nothing.

Source: Rhu, Gimelshein, Clemons, Zulfiqar, Keckler, *vDNN: Virtualized Deep Neural Networks for Scalable,
Memory-Efficient Neural Network Design*, MICRO 2016 (its policy vDNN_conv), as HOME describes and compares it (sections
2.2 and 4.1).  The input of a convolution leaves while its last reader in the forward runs, and the next layer waits for
the copy.  It comes back while the backward of the convolution after its own runs, and its own waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from remat_compiler.ir.graph import StorageId
from remat_compiler.ir.plan import Plan, PlanResult, Transfer, in_pages
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.arrays import GraphArrays
from remat_passes.planning.interface import Candidate, choose
from remat_passes.policies.kinds import heavy_layers
from remat_passes.sequences.sequence import Placement, StepIndex, baseline_order, recompute
from remat_passes.transfers.gaps import gaps_of


@dataclass(frozen=True, slots=True)
class Vdnn:
    """Moves the inputs of convolutions, or of products where a model has no convolution."""

    name: ClassVar[str] = "vdnn"

    def plan(self, problem: RematProblem) -> PlanResult:
        """The plan that moves them if keeping everything does not fit."""
        return choose(problem, self.name, self._candidates(problem))

    def _candidates(self, problem: RematProblem) -> Iterator[Candidate]:
        """Keeping everything, and moving, for each placement of tangent-free operators."""
        index = StepIndex.of(problem.graph)
        for placement in Placement:
            kept = recompute(index, baseline_order(index, placement), index.all_savable())
            yield Candidate(kept)
            if problem.moves:
                yield Candidate(_moving(problem, kept))


def _moving(problem: RematProblem, plan: Plan) -> Plan:
    """`plan` with a transfer for each input of a convolution that both parts of the step read."""
    graph, tier = problem.graph, problem.costs.links[0].tier
    heavy = heavy_layers(graph)
    inputs = {s for op in heavy.intersection(plan.steps[: plan.boundary]) for s in graph.ops[op].reads}
    gaps = gaps_of(graph, GraphArrays.of(graph), np.array(plan.steps, np.int64))
    # Where a convolution of the backward begins: there the inputs of the one before it are asked for.
    begins = [p for p in range(plan.boundary, len(plan.steps)) if plan.steps[p] in heavy]
    transfers, left = [], problem.offload_bytes
    for storage, first, read in zip(gaps.storage.tolist(), gaps.first.tolist(), gaps.read.tolist()):
        crosses = first <= plan.boundary <= read and storage in inputs
        pages = in_pages(graph.storages[storage].size_bytes)
        back = max((p for p in begins if first < p < read), default=max(plan.boundary, first + 1))
        if crosses and pages <= left and first < back <= read:
            transfers.append(Transfer(StorageId(storage), first, back, tier))
            left -= pages
    return replace(plan, transfers=tuple(transfers))
