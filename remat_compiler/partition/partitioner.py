"""The object that AOTAutograd calls to cut a joint graph.

It is pickled into Inductor's configuration and named in its cache key, so it holds plain data only, and its
`uuid` names everything that decides the plan.  Its partitions go to the session around the compilation
(`partition.session`); on a cache hit it never runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.declared import declared_names
from remat_compiler.capture.leaving import finish
from remat_compiler.capture.source import name_inputs
from remat_compiler.costs.declared_workspace import declared_workspaces
from remat_compiler.observer import observers
from remat_compiler.partition.partition import partition
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.session import current_session
from remat_compiler.plan_cache.cache import shared_plan_cache
from remat_compiler.plan_cache.cached_planner import CachedPlanner, code_digest, may_take_similar
from remat_compiler.simulate.ends import planned_before_ends
from remat_compiler.simulate.interlude import planned_around
from remat_compiler.version import __version__
from remat_passes.registry import make_planner


class RematPartitioner(torch_compat.CustomPartitionerFn):
    """Cuts every joint graph of one compilation by one request.

    Args:
        request: The budget, the planner, and how they may be used.
        costs: Identity of the operators' times, see `costs.table.cost_identity`: a plan made under other rates is
            still valid, but need not be the best.

    Attributes:
        similar: Whether a plan of another size may be taken from the cache.  It is part of `uuid`, so that compiled
            code of such a plan is not taken from a cache either if this is false.
        declared: Operators that the user allows to be executed again.
    """

    def __init__(self, request: PartitionRequest, costs: str) -> None:
        self.request = request
        self.costs = costs
        # A variant for sizes of its own is compiled because the plans of other sizes are too large or too slow.
        self.similar = may_take_similar() and not request.sizes
        # Part of `uuid`, since they change plans and compiled code.
        self.declared = (declared_names(), declared_workspaces())

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **keywords: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Forward and backward graph of the joint graph `gm`, in the convention of torch's partitioners."""
        request = self.request
        planner = make_planner(
            request.planner,
            # Each planner has a time limit of its own by default.
            **({} if request.time_limit is None else {"time_limit": request.time_limit}),
            reorders=request.reorders,
            layer_bytes=request.layer_bytes,
        )
        session = current_session()
        cached = CachedPlanner(
            planner,
            None if session.directory is None else shared_plan_cache(session.directory),
            max_slowdown=request.max_slowdown,
            costs=self.costs,
            parameters=session.parameters,
            similar=self.similar,
        )
        # AOTAutograd numbers the inputs; the session has their names in the user's program, for the reports.
        name_inputs(gm, session.inputs)
        # Bytes of symbolic sizes are those of the request, not of the call that Dynamo traced.
        num_fwd_outputs = keywords["num_fwd_outputs"]
        static_input_indices = tuple(keywords.get("static_lifetime_input_indices") or ())
        with torch_compat.sizes_at(dict(request.sizes)):
            made = partition(
                gm,
                request,
                num_fwd_outputs=num_fwd_outputs,
                static_input_indices=static_input_indices,
                plan_with=lambda problem: planned_before_ends(
                    problem, lambda asked: planned_around(asked, request.between_bytes, cached.plan)
                ),
                session=session,
            )
        finish(made.graphs.forward, made.graphs.backward, num_fwd_outputs)
        if request.inner == "inductor":
            torch_compat.serve_any_sizes(bool(made.chunked))
            torch_compat.write_padded(made.graphs.forward, made.graphs.backward)
            if not request.free_layout:
                torch_compat.keep_layout()
            # Torch's own partition is otherwise compiled exactly as the stock backend would; but not where gradients
            # leave, whose memory would be used again.
            if not made.unchanged or request.leaving:
                most_bytes = max(made.peak_bytes, request.budget_bytes or 0)
                torch_compat.keep_planned_memory(gm, torch_compat.FusionLimit(most_bytes, tuple(request.sizes)))
        session.partitions.append(made)
        for observer in observers():
            observer.partition_made(
                made, request, num_fwd_outputs=num_fwd_outputs, static_input_indices=static_input_indices
            )
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
