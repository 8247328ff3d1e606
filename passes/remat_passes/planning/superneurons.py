"""SuperNeurons: move what convolutions make, recompute what all cheaper layers make.

Source: Wang et al., *SuperNeurons: Dynamic GPU Memory Management for Training Deep Neural Networks*, PPoPP 2018, as
HOME describes and compares it (section 4.1): the results of convolutions are moved, those of pooling, activation and
normalization layers are dropped and recomputed; those of fully connected layers stay.  Copies run beside the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_passes.planning.interface import Candidate, choose
from remat_passes.policies.kinds import heavy_layers, is_product
from remat_passes.policies.policy import KEEP, MOVE, RECOMPUTE
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
            actions = space.all_of(KEEP)
            for v, storage in enumerate(space.policies.values.tolist()):
                producer = space.index.producer[storage]
                product = is_product(problem.graph.ops[producer])
                wanted = MOVE if producer in heavy else KEEP if product else RECOMPUTE
                actions[v] = wanted if space.policies.allowed[v, wanted] else KEEP
            yield Candidate(space.plan(actions))
