"""Plan the graph of a step again with what gradients from before the step leave of the budget."""

from __future__ import annotations

from dataclasses import replace

from remat_compiler.compilation.search import SearchGoal
from remat_compiler.report.plan_report import StepFigures
from remat_compiler.step_budget.compiled_graph import CompiledGraph
from remat_compiler.step_budget.joint_steps import JointSteps


def decide_beside_gradients(graph: CompiledGraph, joint: JointSteps) -> None:
    """Plan a graph that makes up its steps alone so that it keeps to the budget with gradients from before them.

    Where no plan does, it gets the smallest peak: a training run must not end in its second micro-batch.

    Args:
        graph: The graph.
        joint: Its steps.
    """
    limit, gradient_bytes = joint.limit_bytes(), joint.gradient_bytes
    if graph.changing is not None:
        if limit is not None:
            graph.changing.keep_beside(limit, gradient_bytes)
            graph.keep(limit, "", StepFigures(1, None, limit, gradient_bytes=gradient_bytes))
        return
    present = None if graph.attempt is None else graph.attempt.needed_bytes
    if limit is None or present is None:
        return
    left_bytes = max(limit - gradient_bytes, 1)
    if (present > left_bytes or joint.freed) and graph.recompile is not None:
        request = replace(graph.recompile.alone.request, budget_bytes=left_bytes, fraction=None)
        goal = SearchGoal(request, limit_bytes=left_bytes, takes_smallest=True)
        with graph.recompile.dynamo_context():
            attempt, _ = graph.recompile.search.run(goal)
        needed = attempt.needed_bytes
        # The smallest peak that was planned may be more than what the present code takes.
        if needed is None or needed < present or needed <= left_bytes:
            graph.exchange(attempt)
            present = present if needed is None else needed
    step = StepFigures(1, present + gradient_bytes, limit, gradient_bytes=gradient_bytes)
    graph.keep(max(left_bytes, present), "", step)
