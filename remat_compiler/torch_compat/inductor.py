"""Inductor: compile a planned graph so that the emitted code keeps to the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._functorch import partitioners
from torch._inductor.compile_fx import compile_fx
from torch._inductor.custom_graph_pass import CustomPartitionerFn as CustomPartitionerFn
from torch._inductor.fx_passes import post_grad
from torch._inductor.graph import SubgraphLowering
from torch._inductor.virtualized import V

from remat_compiler.torch_compat.any_sizes import compile_inner, serve_any_sizes
from remat_compiler.torch_compat.convolutions import guard_layout
from remat_compiler.torch_compat.kernel_files import common_kernel_files, guard_kernel_files
from remat_compiler.torch_compat.patch import Patch
from remat_compiler.torch_compat.patches import (
    BUFFER_REUSE,
    CPU_KERNELS,
    DONATED_BUFFERS,
    KERNEL_CACHES,
    KERNEL_GROUPS,
    LAYOUT,
    LONG_LOOPS,
    PARTITIONER,
    PLAIN_CPU_KERNELS,
    PRODUCT_FUSION,
    REORDERING,
    ROW_PADDING,
    TRITON_KERNELS,
)
from remat_compiler.torch_compat.patching import change_setting, named, original, replace, settings
from remat_compiler.torch_compat.planned_fusion import FusionLimit as FusionLimit
from remat_compiler.torch_compat.planned_fusion import frees_too_late, is_fusion_limited, limit_fusion, planned_choices
from remat_compiler.torch_compat.returned_inputs import keep_returned_inputs
from remat_compiler.torch_compat.store import LAY_OUT as LAY_OUT
from remat_compiler.torch_compat.store import PAD as PAD
from remat_compiler.torch_compat.store import PUT_IN_ORDER as PUT_IN_ORDER
from remat_compiler.torch_compat.store import STORE as STORE
from remat_compiler.torch_compat.store import TABLE_GRADIENT as TABLE_GRADIENT
from remat_compiler.torch_compat.store import is_padded_in_loop as is_padded_in_loop
from remat_compiler.torch_compat.store import mark_padded_in_loop as mark_padded_in_loop
from remat_compiler.torch_compat.store import materialise as materialise
from remat_compiler.torch_compat.store import pad_in_loops
from remat_compiler.torch_compat.thread_flag import ThreadFlag

_KEEP_PLANNED_MEMORY: dict[Patch, Any] = {BUFFER_REUSE: False, REORDERING: False}
"""Inductor's settings under which emitted code allocates and frees as the planned graphs say."""
_PLAIN_LAYOUT: dict[Patch, Any] = {LAYOUT: False}
"""The setting under which convolutions run without copies of their weights in channels-last order."""
_PLANNED_ON_GPU: dict[Patch, Any] = {LONG_LOOPS: 200, ROW_PADDING: False}
"""Settings under which values on a GPU take over the memory of others as planned; for a CPU they stand so anyway.

Inductor would write a value to memory after 30 operations, and its reader could no longer take over the memory of what
the value was computed from.  Plans hold loops to `MAX_INLINED_NODES` nodes of a few operations each, see
`capture.materialise`.  And it would leave gaps between some long rows of odd widths, so that logits and their gradient
were of different sizes.
"""
# By thread: torch's functions are changed for the whole process, where other threads compile unplanned graphs.
_outlining = ThreadFlag()


def keep_layout() -> None:
    """Let the rest of `compile_with_inductor` keep the program's memory layout of convolutions."""
    for setting, value in _PLAIN_LAYOUT.items():
        change_setting(setting, value)


def keep_planned_memory(gm: fx.GraphModule, limit: FusionLimit) -> None:
    """Let the rest of `compile_with_inductor` keep to the planned memory.

    Args:
        gm: The joint graph.
        limit: The bytes that loops may hold.
    """
    limit_fusion(limit)
    changed = dict(_KEEP_PLANNED_MEMORY)
    values = (node.meta.get("val") for node in gm.graph.nodes)
    if any(isinstance(value, torch.Tensor) and value.device.type == "cuda" for value in values):
        changed |= _PLANNED_ON_GPU
    for setting, value in changed.items():
        change_setting(setting, value)


def write_padded(*graphs: fx.GraphModule) -> None:
    """Have the rest of `compile_with_inductor` write what is padded in loops into the memory of what they read.

    Args:
        graphs: Forward and backward, cut.
    """
    padded = [pad_in_loops(gm) for gm in graphs]
    # A gap after a product's rows would make it another size than its gradient.
    if any(padded):
        change_setting(ROW_PADDING, False)


def has_convolutions(gm: fx.GraphModule) -> bool:
    """Whether Dynamo's graph has a convolution, whose layout Inductor would choose."""
    # Dynamo's graph has the functions that the user calls, `conv2d` and its like, in several forms.
    names = (getattr(n.target, "__name__", "") for n in gm.graph.nodes if n.op == "call_function")
    return any(name.startswith("conv") for name in names)


def compile_with_inductor(gm: fx.GraphModule, example_inputs: Any, partitioner: CustomPartitionerFn) -> Any:
    """Compile Dynamo's graph with Inductor, cutting joint graphs with `partitioner`; `gm` may be changed."""
    _guard_product_fusion()
    _guard_kernel_groups()
    _guard_arguments_of_bodies()
    keep_returned_inputs()
    guard_layout()
    # The partitioner may change settings on the way; leaving the block restores them.
    with settings(
        {setting: original(setting) for setting in (*_KEEP_PLANNED_MEMORY, *_PLAIN_LAYOUT, *_PLANNED_ON_GPU)}
    ):
        try:
            with V.set_choices_handler(planned_choices()), common_kernel_files():
                return compile_fx(gm, example_inputs, compile_inner, config_patches=named({PARTITIONER: partitioner}))
        finally:
            # The partitioner sets both, and this thread may compile an unplanned graph next.
            limit_fusion(None)
            serve_any_sizes(False)


@contextmanager
def code_generation_only() -> Iterator[None]:
    """Let Inductor emit wrappers without compiling kernels; the code serves dry runs and is in no cache."""
    _guard_kernel_compilers()
    # Caches would hand the code without kernels to the next compilation of the same graph.
    with _outlining.set(), settings({KERNEL_CACHES: True}):
        yield


@cache
def _guard_kernel_compilers() -> None:
    """Let a thread leave out the kernels of the graphs that it compiles; other threads may compile meanwhile."""
    # Before, so that what is left out is not collected.
    guard_kernel_files()
    for kernels in (CPU_KERNELS, PLAIN_CPU_KERNELS, TRITON_KERNELS):
        replace(kernels, _unless_left_out)


def _unless_left_out(compiles: Callable[..., Any]) -> Callable[..., Any]:
    def compile_kernel(*arguments: Any, **keywords: Any) -> Any:
        return _no_kernel if _outlining else compiles(*arguments, **keywords)

    return compile_kernel


def _no_kernel(*_: object, **__: object) -> None:
    raise RuntimeError("a step whose kernels were not compiled was executed")


@cache
def _guard_kernel_groups() -> None:
    """Let a planned graph on a CPU free values that die in a loop before the next loop allocates, where it must.

    Inductor puts all loops between two kernels into one C++ function, allocates all their results before it and
    frees what they read after it.
    """
    replace(KERNEL_GROUPS, _where_memory_is_freed)


def _where_memory_is_freed(ready: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def ready_to_flush(self: Any) -> bool:
        # A flush ends the C++ function, before which nothing is freed.  Each function is compiled and called by itself.
        return frees_too_late(self.scheduler) or ready(self)

    return ready_to_flush


@cache
def _guard_arguments_of_bodies() -> None:
    """Keep Inductor from taking arguments of a branch's or a loop's body for saved values that are not read any more.

    It asks by their positions, and these are the positions of the saved values among the arguments of the backward.
    """
    replace(DONATED_BUFFERS, _none_of_bodies)


def _none_of_bodies(donated: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def get_donated_buffers(self: Any) -> Any:
        return {} if isinstance(V.graph, SubgraphLowering) else donated(self)

    return get_donated_buffers


@cache
def _guard_product_fusion() -> None:
    """Keep Inductor from fusing ``mm + x`` in planned graphs if that takes memory that was not planned.

    The fused product runs at the place of the sum; until then its arguments, freed by the plan, would be held.  And it
    reads ``x`` from memory, whereas the loop of the sum could compute ``x`` without storing it.
    """
    # Patterns hold the function itself, so replacing the module's attribute would not reach them.
    check = original(PRODUCT_FUSION)
    every = [entry for stage in post_grad.pass_patterns for entries in stage.patterns.values() for entry in entries]
    asking = [entry for entry in every if entry.extra_check is check]
    # Patterns of another torch may ask another function: better an error than unplanned memory.
    if not asking:
        raise PRODUCT_FUSION.unsupported(f"no pattern asks {PRODUCT_FUSION.target}")
    for entry in asking:
        entry.extra_check = _fuses_as_planned


def _fuses_as_planned(match: Any) -> bool:
    if not original(PRODUCT_FUSION)(match):
        return False
    if not is_fusion_limited():
        return True
    product = next(n for n in match.nodes if n.target is torch.ops.aten.mm.default)
    if _is_computed_on_the_way(match.kwargs["inp"]):
        return False
    # The fused product would hold its arguments while a kernel between it and the sum runs.
    node = product.next
    while node is not match.output_node() and node.op != "output":
        if node.op == "call_function" and _is_product(node):
            return False
        node = node.next
    return True


def _is_computed_on_the_way(node: fx.Node) -> bool:
    """Whether the loop that reads the node would compute it, so that it needs no memory."""
    views = partitioners.get_default_op_list().view_ops
    # Views are part of the loop; a value with several readers is taken to be stored.
    while len(node.users) == 1 and getattr(node.target, "overloadpacket", None) in views:
        node = node.all_input_nodes[0]
    return len(node.users) == 1 and torch.Tag.pointwise in getattr(node.target, "tags", ())


def _is_product(node: fx.Node) -> bool:
    """Whether the node is a kernel of its own: a product, convolution or attention."""
    packet = getattr(node.target, "overloadpacket", None)
    return packet is not None and packet in partitioners.get_default_op_list().compute_intensive_ops
