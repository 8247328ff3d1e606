"""Compile one Dynamo graph under a budget: plan, compile, check the peak of what was emitted, adjust, report.

`graphs` has the question and both kinds of answers; `compilation.search` decides which requests to try, and which try
to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.compilation.lateness import told_if_late
from remat_compiler.graphs.changing_sizes import at_changing_sizes
from remat_compiler.graphs.fixed_sizes import at_fixed_sizes
from remat_compiler.graphs.question import question_of
from remat_compiler.options import Environment, RematOptions
from remat_compiler.plan_cache.planner_loops import tell_of_compiling


@torch_compat.reserving_no_more()
@told_if_late()
def compile_graph(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: RematOptions, environment: Environment
) -> Callable[..., Any]:
    """Compile Dynamo's graph so that its training step stays within the budget; report the decisions.

    Raises:
        InfeasibleBudget: No plan fits, and the options do not say to take the smallest peak.
    """
    tell_of_compiling()
    torch_compat.keep_first_call_on_fakes()
    torch_compat.inline_regions(gm)
    # All of the peak may be that of a partition of torch's that cannot be used, and who asks for it wants to train.
    # Plans take sizes that depend on data for as large as they may be, so a step that they refuse may fit.
    refuses = options.on_infeasible != "min"
    if refuses and (options.memory_budget.part == 1.0 or torch_compat.sizes_depend_on_data(gm)):
        options = replace(options, on_infeasible="min")
    question = question_of(gm, example_inputs, options, environment)
    return at_changing_sizes(question) if question.symbols else at_fixed_sizes(question)
