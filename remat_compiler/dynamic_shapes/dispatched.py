"""The dispatch of a graph of changing sizes, put together: its variants, their maker, and what watches its calls."""

from __future__ import annotations

from remat_compiler import torch_compat
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.dynamic_shapes.allocator_watch import AllocatorWatch
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.dynamic_shapes.mimose.sheltered_phase import shelter
from remat_compiler.dynamic_shapes.variant_context import VariantContext
from remat_compiler.dynamic_shapes.variant_maker import VariantMaker
from remat_compiler.observer import observers
from remat_compiler.options import RematOptions
from remat_compiler.step_model.allowance import Allowance
from remat_passes.registry import has_option


def dispatched(
    context: VariantContext, options: RematOptions, first: Attempt, seconds: float, allowance: Allowance | None = None
) -> Dispatch:
    """The dispatch that runs a graph of changing sizes.

    Args:
        context: How the graph is compiled.
        options: The user's options.
        first: The compilation for the first call.
        seconds: The time that it took.
        allowance: The graph's part of the budget until its step is known; `None` for all of it.
    """
    maker = VariantMaker(context, options, first, seconds)
    if allowance is None:
        allowance = Allowance.whole(context.request.budget_bytes or 0)
    variant = maker.variant(first, maker.first_sizes, "first", allowance)
    positions = [symbol.position for symbol in context.symbols]
    made = Dispatch(positions, allowance, variant, maker, options.max_variants)
    inputs = first.partitions[0].graphs.forward.graph.find_nodes(op="placeholder")
    allocator = torch_compat.device_allocator(node.meta.get("val") for node in inputs)
    if allocator is not None:
        made.watchers = (AllocatorWatch(made, allocator, maker.margin),)
    if options.estimator == "quadratic":
        # Registered last, so called first: its own run of the forward is over when the allocator is read.
        layers_at = shelter(made, first, context.session.workspace)
        if has_option(options.planner, "layer_bytes"):
            maker.layers_at = layers_at
    for observer in observers():
        observer.dispatch_made(made)
    return made
