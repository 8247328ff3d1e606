"""The cost table of a captured graph, by the cost model that the user chose."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from remat_compiler.costs.roofline import NOMINAL, roofline_costs
from remat_compiler.ir.graph import TrainingGraph
from remat_compiler.ir.problem import CostTable


def cost_table(
    graph: TrainingGraph,
    main_nodes: Sequence[fx.Node],
    loops: Sequence[bool],
    workspace_bytes: tuple[int, ...],
    cost_model: str,
) -> CostTable:
    """Time and workspace of every operator; arguments as in `roofline_costs`."""
    return roofline_costs(graph, main_nodes, loops, NOMINAL, workspace_bytes)
