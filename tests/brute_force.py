"""The cheapest plan of a tiny problem, by search over all of them."""

from __future__ import annotations

import heapq

from remat_compiler.ir.graph import OpId, Phase
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify


def cheapest_added_ns(problem: RematProblem, most_repeats: int, in_forward: bool = False) -> int | None:
    """Least added time of a valid plan, of all that keep the joint order and repeat forward operators.

    Args:
        problem: The problem; its tangent-free operators stay where they are.
        most_repeats: Repetitions tried at most; the answer is exact among plans of no more.
        in_forward: Whether repetitions may stand in the forward as well.

    Returns:
        Nanoseconds, or `None` where no such plan fits.
    """
    forwards = [op for op in problem.graph.ops if op.phase is not Phase.BACKWARD and op.may_recompute]
    boundary = sum(op.phase is Phase.FORWARD for op in problem.graph.ops)
    first = (tuple(op.id for op in problem.graph.ops), boundary)
    heap: list[tuple[int, int, tuple[OpId, ...], int]] = [(0, 0, *first)]
    seen = {first}
    while heap:
        added, repeats, steps, bound = heapq.heappop(heap)
        plan = Plan(steps, bound)
        if simulate(problem.graph, problem.costs, plan).peak_bytes <= problem.budget_bytes and not verify(
            problem, plan
        ):
            return added
        if repeats == most_repeats:
            continue
        for position in range(1 if in_forward else bound, len(steps)):
            for op in forwards:
                longer = ((*steps[:position], op.id, *steps[position:]), bound + (position < bound))
                if longer not in seen and op.id in steps[: max(position, boundary)]:
                    seen.add(longer)
                    heapq.heappush(heap, (added + problem.costs.time_ns[op.id], repeats + 1, *longer))
    return None
