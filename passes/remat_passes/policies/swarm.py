"""Particle swarm over policies.

Source: *HOME: A Holistic GPU Memory Management Framework for Deep Learning*, section 3.3 and Algorithm 1 for the
search, section 3.5 and Algorithm 3 for the update.  A particle is a policy.  Each turn evaluates all particles; then,
value by value, each particle takes the action that the best particle of the last turn has, or the one that its own best
policy so far has, whichever makes the whole policy better.

Where we deviate: the simulator evaluates (`decode`), and a policy over the budget ranks behind all that fit, by the
bytes that it is over, where the paper's evaluator returns an error.  A trial whose outcome is known is not evaluated:
an action that does not change the policy.  Where a turn changes no particle, all later turns would be the same, and the
search ends.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from remat_passes.policies.decode import OVER, rank
from remat_passes.policies.policy import Policies, within_room
from remat_passes.sequences.jit import parallel
from remat_passes.sequences.profile import IntArray

RANK, EVALUATIONS = range(2)
"""Columns of the figures of a particle."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn of the swarm found.

    Attributes:
        best_ns: Added time of the best policy so far, or `None` if none fits.
        average_ns: Mean of the added times of this turn's particles that fit.
        worst_ns: The largest of them.
        fitting: How many fit.
    """

    best_ns: int | None
    average_ns: float
    worst_ns: int
    fitting: int


@dataclass(slots=True, eq=False)
class Swarm:
    """A search; call `run` once.

    Attributes:
        policies: What is searched.
        count: Number of particles.
        turns: Largest number of turns.
        seed: Of the first particles.
        threads: Threads that evaluate; the result is the same with any number.
        observe: Called with each turn.
        evaluations: Policies evaluated.
    """

    policies: Policies
    count: int = 500
    turns: int = 500
    seed: int = 1
    threads: int = 2
    observe: Callable[[Turn], None] | None = None
    evaluations: int = 0

    def run(self) -> IntArray:
        """The best policy found."""
        particles = random_policies(self.policies, self.count, self.seed)
        figures = np.zeros((self.count, 2), np.int64)
        parts = [
            slice(i * self.count // self.threads, (i + 1) * self.count // self.threads) for i in range(self.threads)
        ]
        with ThreadPoolExecutor(self.threads) as pool:

            def everywhere(work: Callable[[slice], None]) -> None:
                list(pool.map(work, parts))

            everywhere(lambda part: evaluate(self.policies, particles[part], figures[part]))
            own, own_rank = particles.copy(), figures[:, RANK].copy()
            best: IntArray = particles[0].copy()
            best_rank = 1 << 62
            for _ in range(self.turns):
                leader = int(np.argmin(figures[:, RANK]))
                if figures[leader, RANK] < best_rank:
                    best, best_rank = particles[leader].copy(), int(figures[leader, RANK])
                better = figures[:, RANK] < own_rank
                own[better], own_rank[better] = particles[better], figures[better, RANK]
                self._tell(best_rank, figures[:, RANK])
                before, last = particles.copy(), particles[leader].copy()
                everywhere(lambda part: update(self.policies, particles[part], figures[part], last, own[part]))  # noqa: B023
                if (before == particles).all():
                    break
        self.evaluations = int(figures[:, EVALUATIONS].sum())
        return best

    def _tell(self, best_rank: int, ranks: IntArray) -> None:
        """Tell the observer of a turn."""
        if self.observe is None:
            return
        fit = ranks[ranks < OVER]
        self.observe(
            Turn(
                best_ns=best_rank if best_rank < OVER else None,
                average_ns=float(fit.mean()) if len(fit) else 0.0,
                worst_ns=int(fit.max(initial=0)),
                fitting=len(fit),
            )
        )


def random_policies(policies: Policies, count: int, seed: int) -> IntArray:
    """Particles with actions at random, of those that each value may have, and there is room for."""
    draw = np.random.default_rng(seed)
    scores = np.where(policies.allowed, draw.random((count, *policies.allowed.shape)), -1.0)
    return within_room(policies, np.argmax(scores, axis=2).astype(np.int64))


@parallel
def evaluate(p: Policies, particles: IntArray, figures: IntArray) -> None:
    """Fill the figures of each particle."""
    for i in range(len(particles)):
        figures[i, RANK] = rank(p, particles[i])
        figures[i, EVALUATIONS] += 1


@parallel
def update(p: Policies, particles: IntArray, figures: IntArray, last: IntArray, own: IntArray) -> None:
    """Algorithm 3: each particle moves towards the last turn's best one and its own best.

    Args:
        p: What is searched.
        particles: The particles, changed in place.
        figures: Their figures, changed likewise.
        last: The best particle of the last turn.
        own: The best that each has been.
    """
    for i in range(len(particles)):
        particle, known = particles[i], figures[i, RANK]
        for v in range(len(last)):
            before = particle[v]
            if last[v] == own[i, v]:
                particle[v] = last[v]
                # Both trials are the same policy; its rank is not asked for before something depends on it.
                known = known if before == last[v] else -1
                continue
            ranks = np.empty(2, np.int64)
            for k in range(2):
                particle[v] = last[v] if k == 0 else own[i, v]
                if particle[v] == before and known >= 0:
                    ranks[k] = known
                else:
                    ranks[k] = rank(p, particle)
                    figures[i, EVALUATIONS] += 1
            first = ranks[0] < ranks[1]
            particle[v] = last[v] if first else own[i, v]
            known = ranks[0] if first else ranks[1]
        if known < 0:
            known = rank(p, particle)
            figures[i, EVALUATIONS] += 1
        figures[i, RANK] = known
