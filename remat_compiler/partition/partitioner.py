"""The object that AOTAutograd calls to cut a joint graph.

It is pickled into Inductor's configuration and named in its cache key, so it holds plain data only, and its
`uuid` names everything that decides the plan.  What it decides goes to the `collect` block around the
compilation; on a cache hit it never runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.declared import declared_names
from remat_compiler.capture.source import name_inputs
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.partition.partition import partition
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import Partition
from remat_compiler.plan_cache.cache import shared_plan_cache
from remat_compiler.plan_cache.cached_planner import CachedPlanner, code_digest, may_take_similar
from remat_compiler.simulate.interlude import planned_around
from remat_compiler.version import __version__
from remat_passes.registry import make_planner

_collected: ContextVar[list[Partition] | None] = ContextVar("remat_partitions", default=None)
_workspace: ContextVar[WorkspaceTable | None] = ContextVar("remat_workspace", default=None)
_parameters: ContextVar[str] = ContextVar("remat_parameters", default="")
_inputs: ContextVar[Sequence[str]] = ContextVar("remat_inputs", default=())


@contextmanager
def collect(workspace: WorkspaceTable, parameters: str = "", inputs: Sequence[str] = ()) -> Iterator[list[Partition]]:
    """Partitions made within the block, in order.

    Args:
        workspace: Serves their measurements; plans are kept below its folder.
        parameters: Shapes of the parameters of what is compiled, see `graph_key.parameter_shapes`.
        inputs: Where each input of Dynamo's graph comes from, see `torch_compat.input_sources`.
    """
    found: list[Partition] = []
    tokens = _collected.set(found), _workspace.set(workspace), _parameters.set(parameters)
    named = _inputs.set(inputs)
    try:
        yield found
    finally:
        _collected.reset(tokens[0])
        _workspace.reset(tokens[1])
        _parameters.reset(tokens[2])
        _inputs.reset(named)


class RematPartitioner(torch_compat.CustomPartitionerFn):
    """Cuts every joint graph of one compilation by one request.

    Args:
        request: What to aim for.
        costs: What decides the operators' times besides the graph, see `costs.table.cost_identity`: a plan made under
            other rates is still valid, but need not be the best.

    Attributes:
        similar: Whether a plan of another size may be taken from the cache; where it may not, no code is taken either
            that was compiled where it might.
        declared: Operators that the user allows to be executed again.
    """

    def __init__(self, request: PartitionRequest, costs: str) -> None:
        self.request = request
        self.costs = costs
        # A variant for sizes of its own is compiled because the plans of other sizes will not do.
        self.similar = may_take_similar() and not request.sizes
        self.declared = declared_names()

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **keywords: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Forward and backward graph of the joint graph `gm`, in the convention of torch's partitioners."""
        request = self.request
        planner = make_planner(
            request.planner,
            **({} if request.time_limit is None else {"time_limit": request.time_limit}),
            # Inductor schedules a moved backward otherwise than planned, and would peak higher.
            reorders=request.inner == "eager",
            layer_bytes=request.layer_bytes,
        )
        workspace = _workspace.get() or WorkspaceTable()
        cached = CachedPlanner(
            planner,
            # No folder means that nothing is to be kept.
            None if workspace.directory is None else shared_plan_cache(workspace.directory),
            max_slowdown=request.max_slowdown,
            costs=self.costs,
            parameters=_parameters.get(),
            similar=self.similar,
        )
        name_inputs(gm, _inputs.get())
        with torch_compat.sizes_at(dict(request.sizes)):
            made = partition(
                gm,
                request,
                num_fwd_outputs=keywords["num_fwd_outputs"],
                static_input_indices=tuple(keywords.get("static_lifetime_input_indices") or ()),
                plan_with=lambda problem: planned_around(problem, request.between_bytes, cached.plan),
                workspace=workspace,
            )
        if request.inner == "inductor" and not made.unchanged:
            torch_compat.keep_planned_memory(request.free_layout)
        collected = _collected.get()
        if collected is not None:
            collected.append(made)
        return made.graphs.forward, made.graphs.backward

    def uuid(self) -> str:
        """Names the request, and the costs, versions and code that turn it into a plan and into compiled code."""
        versions = __version__, torch.__version__, code_digest("remat_compiler")
        text = repr((self.request, self.costs, self.similar, self.declared, versions))
        return hashlib.sha256(text.encode()).hexdigest()


class StockPartitioner(torch_compat.CustomPartitionerFn):
    """Cuts joint graphs as torch does without a budget; nothing is planned."""

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **keywords: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Forward and backward graph of the joint graph `gm`."""
        return torch_compat.stock_partition(gm, joint_inputs, **keywords)

    def uuid(self) -> str:
        """Names torch's own cut."""
        return f"stock {torch.__version__}"
