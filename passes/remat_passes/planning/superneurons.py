"""SuperNeurons: move what convolutions make, recompute what all cheaper layers make.

Source: Wang et al., *SuperNeurons: Dynamic GPU Memory Management for Training Deep Neural Networks*, PPoPP 2018, as
HOME describes and compares it (section 4.1): the results of convolutions are moved, those of pooling, activation and
normalization layers are dropped and recomputed; those of fully connected layers stay.  Copies run beside the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_passes.planning.interface import Candidate, choose
from remat_passes.policies.kinds import heavy_layers, is_product
from remat_passes.policies.policy import KEEP, MOVE, RECOMPUTE, within_room
from remat_passes.policies.space import PolicySpace


@dataclass(frozen=True, slots=True)
class SuperNeurons:
    """An action by the kind of the layer; products take the part of convolutions where a model has none of these."""

    name: ClassVar[str] = "superneurons"

    def plan(self, problem: RematProblem) -> PlanResult:
        """That plan, if keeping everything does not fit."""
        return choose(problem, self.name, self._candidates(problem))

    def _candidates(self, problem: RematProblem) -> Iterator[Candidate]:
        """Keeping everything, and the actions by kind, for each placement of tangent-free operators."""
        heavy = heavy_layers(problem.graph)
        for space in PolicySpace.of_all(problem):
            yield Candidate(space.kept)
            makers = [space.index.producer[storage] for storage in space.policies.values.tolist()]
            wanted = [
                MOVE if op in heavy else KEEP if is_product(problem.graph.ops[op]) else RECOMPUTE for op in makers
            ]
            yield Candidate(space.plan(within_room(space.policies, space.allowed(np.array(wanted, np.int64)))))
