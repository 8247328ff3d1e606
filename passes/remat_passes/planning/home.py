"""HOME: a particle swarm over keeping, moving and recomputing each value.

Source: *HOME: A Holistic GPU Memory Management Framework for Deep Learning*; see `policies.swarm` for the algorithms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_compiler.progress import progress
from remat_passes.planning.interface import Candidate, choose
from remat_passes.policies.space import PolicySpace
from remat_passes.policies.swarm import Swarm


@dataclass(frozen=True, slots=True)
class Home:
    """HOME's particle swarm; without a budget that binds it keeps everything.

    Attributes:
        particles: Number of particles; the paper's is the default.
        turns: Turns of the search, which ends earlier where all particles have come to rest; the paper's is the
            default.
        seed: Of the first particles.
    """

    name: ClassVar[str] = "home"
    particles: int = 500
    turns: int = 500
    seed: int = 1

    def plan(self, problem: RematProblem) -> PlanResult:
        """The best policy found in any order of the step that the placement of tangent-free operators gives."""
        spaces = PolicySpace.of_all(problem)
        found = [Candidate(space.kept) for space in spaces]
        kept = choose(problem, self.name, found)
        if kept.peak_bytes <= problem.budget_bytes:
            return kept
        found += [self._searched(space) for space in spaces]
        return choose(problem, self.name, found)

    def _searched(self, space: PolicySpace) -> Candidate:
        """The best policy of one order of the step."""
        with progress("swarm", self.turns) as bar:
            swarm = Swarm(space.policies, self.particles, self.turns, self.seed, observe=lambda _: bar.advance())
            best = swarm.run()
        return Candidate(space.plan(best), (("evaluations", str(swarm.evaluations)),))
