"""The only module that touches torch's private partitioner, Inductor and AOTAutograd API.

Every function here behaves the same for torch 2.11 to 2.13; where the versions differ, the difference
ends in this file.
"""

from __future__ import annotations

import bisect
import copy
import functools
import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import torch
import torch._prims.rng_prims
from torch import fx
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import ShortenTraceback
from torch._functorch import config as functorch_config
from torch._functorch import partitioners
from torch._functorch.compile_utils import fx_graph_cse
from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.choices import InductorChoices
from torch._inductor.compile_fx import compile_fx
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch._inductor.fx_passes import post_grad
from torch._inductor.output_code import CompiledFxGraph
from torch._inductor.virtualized import V
from torch._ops import HigherOrderOperator
from torch._subclasses import fake_tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import CheckpointPolicy

from remat_compiler.ir.graph import SavePolicy

# --- joint graph ---------------------------------------------------------------------------------------------------

MUST_SAVE = CheckpointPolicy.MUST_SAVE
RECOMPUTE_SUFFIX = "_recompute"
"""What the name of a node that is executed again ends in (a number may follow)."""

CPU_ALIGNMENT_BYTES = 1
CUDA_ALIGNMENT_BYTES = 512
"""Granularity of the caching allocator on CUDA devices; the CPU allocator counts what is asked for."""


@cache
def fusible_ops() -> frozenset[Any]:
    """Operator packets that torch's own partitioner takes for fusible."""
    return frozenset(op for op in partitioners.get_default_op_list().fusible_ops if not callable_builtin(op))


def callable_builtin(op: Any) -> bool:
    """Whether `op` is a Python function on scalars rather than an operator of torch."""
    return not isinstance(op, (torch._ops.OpOverloadPacket, torch._ops.OpOverload))


def prepare_joint(joint: fx.GraphModule) -> None:
    """Bring the joint graph to the form in which torch's own partitioner would cut it (in place)."""
    joint.graph.eliminate_dead_code()
    if functorch_config.cse:
        joint.graph = fx_graph_cse(joint.graph)
    if partitioners.has_recomputable_ops(joint):
        partitioners.cleanup_recompute_tags(joint, is_default_partition=False)
    if not functorch_config.unsafe_allow_optimization_of_collectives:
        partitioners.force_save_collectives(joint)
    partitioners.force_save_effectful_ops(joint)
    partitioners.force_save_bw_mutation_src(joint)


def joint_outputs(joint: fx.GraphModule, num_fwd_outputs: int) -> tuple[list[Any], list[Any]]:
    """Outputs of the forward and of the backward (nodes, or constants such as `None`)."""
    fwd, bwd, _, _ = partitioners._extract_fwd_bwd_outputs(joint, num_fwd_outputs=num_fwd_outputs)
    return list(fwd), list(bwd)


def is_tangent(node: fx.Node) -> bool:
    """Whether the placeholder is a gradient that autograd hands to the backward."""
    return node.op == "placeholder" and "tangents" in str(node.target)


def is_backward_seed_offset(node: fx.Node) -> bool:
    """Whether the placeholder is a random seed or offset of the backward."""
    return node.op == "placeholder" and bool(partitioners._is_bwd_seed_offset(node))


def must_be_in_forward(node: fx.Node) -> bool:
    """Whether torch pins the node to the forward (an in-place change made there)."""
    return bool(partitioners._must_be_in_forward(node))


def must_be_in_backward(node: fx.Node) -> bool:
    """Whether torch pins the node to the backward (an in-place change made there)."""
    return bool(partitioners._must_be_in_backward(node))


def mutated_inputs(primals: list[fx.Node]) -> set[fx.Node]:
    """Primals whose data AOTAutograd found to change in the forward, inside the graph or by the wrapper around it."""
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        return set()
    return {node for node, info in zip(primals, metadata.input_info) if info.mutates_data}


def copy_module(joint: fx.GraphModule) -> fx.GraphModule:
    """A graph module with the same nodes, which may be changed without changing `joint`."""
    return fx.GraphModule(joint, copy.deepcopy(joint.graph))


def native_partition(
    joint: fx.GraphModule, *, num_fwd_outputs: int, static_input_indices: tuple[int, ...]
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Cut `joint` as Inductor does without a budget; `joint` may be changed."""
    with functorch_config.patch(activation_memory_budget=1.0):
        return partitioners.min_cut_rematerialization_partition(
            joint,
            None,
            compiler="inductor",
            num_fwd_outputs=num_fwd_outputs,
            static_lifetime_input_indices=list(static_input_indices),
        )


def extract_modules(
    joint: fx.GraphModule,
    saved_values: list[fx.Node],
    saved_sym_nodes: list[fx.Node],
    num_fwd_outputs: int,
    static_lifetime_input_nodes: Any = None,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Split an ordered joint graph at the saved values; both halves keep the order of the joint graph."""
    opaque = [n for n in saved_values if is_opaque(n)]
    keywords: dict[str, Any] = {"saved_opaque_nodes": opaque} if opaque else {}
    return partitioners._extract_fwd_bwd_modules(
        joint,
        [n for n in saved_values if not is_opaque(n)],
        saved_sym_nodes=saved_sym_nodes,
        num_fwd_outputs=num_fwd_outputs,
        static_lifetime_input_nodes=static_lifetime_input_nodes,
        **keywords,
    )


def is_opaque(node: fx.Node) -> bool:
    """Whether the node's value is an opaque object (torch 2.12 and later)."""
    check = getattr(partitioners, "is_opaque_node", None)
    return bool(check(node)) if check is not None else False


# --- operators -----------------------------------------------------------------------------------------------------


def is_effectful_hop(node: fx.Node) -> bool:
    """Whether the node is a higher-order operator that carries an effect token."""
    return isinstance(node.target, HigherOrderOperator) and node.target.name() == "with_effects"


def can_replay(node: fx.Node) -> bool:
    """Whether the random state of the node's device can be saved and restored around it."""
    value = node.meta.get("val")
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    return isinstance(first, torch.Tensor) and first.device.type in ("cpu", "cuda")


def has_unbacked_shape(node: fx.Node) -> bool:
    """Whether the size of the node's result is known only after running it."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    value = node.meta.get("val")
    leaves = value if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(v, torch.Tensor) and bool(free_unbacked_symbols(v)) for v in leaves)


def save_policy(node: fx.Node) -> SavePolicy:
    """Demand of checkpoint tags; MUST_RECOMPUTE and PREFER_RECOMPUTE count alike, as in torch."""
    tag = node.meta.get("recompute")
    if tag in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE):
        return SavePolicy.MUST_NOT_SAVE
    if tag is CheckpointPolicy.MUST_SAVE:
        return SavePolicy.MUST_SAVE
    return SavePolicy.FREE


# --- sizes ---------------------------------------------------------------------------------------------------------


def allocated_bytes(value: torch.Tensor) -> int:
    """Bytes that the device's allocator hands out for the storage behind `value`; symbols take their hints."""
    try:
        nbytes = value.untyped_storage().nbytes()
    except NotImplementedError:
        nbytes = value.numel() * value.element_size()
    size = size_hint(nbytes)
    alignment = CUDA_ALIGNMENT_BYTES if value.device.type == "cuda" else CPU_ALIGNMENT_BYTES
    return -(-size // alignment) * alignment


def size_hint(size: int | torch.SymInt) -> int:
    """The size that the traced inputs give; sizes that only the data decide count as torch's fallback."""
    if isinstance(size, int):
        return size
    node = size.node
    hint = node.hint if node.has_hint() else None
    return int(hint) if hint is not None else UNBACKED_FALLBACK


UNBACKED_FALLBACK = 4096
"""What torch's partitioner takes for a size that only the data decide."""


# --- compiled graphs and the dry run -------------------------------------------------------------------------------

FakeTensor = fake_tensor.FakeTensor
FakeTensorMode = fake_tensor.FakeTensorMode

FAKE_RUN_ERRORS: tuple[type[Exception], ...] = (
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.UnsupportedFakeTensorException,
    fake_tensor.UnsupportedOperatorException,
    fake_tensor.UnsupportedMutationAliasingException,
    NotImplementedError,
)
"""What an operator raises on fake tensors when its result depends on data or nobody described its shapes."""

_post_compile_lock = threading.RLock()
_post_compile_listeners: list[Callable[[CompiledFxGraph], None]] = []
_post_compile_original: Callable[..., None] | None = None


def add_post_compile_listener(listener: Callable[[CompiledFxGraph], None]) -> None:
    """Call `listener` with each graph that Inductor compiled or loaded, before torch wraps its callable.

    Every way into a compiled graph passes `post_compile`: a fresh compile, a hit of the FX graph cache, and
    a hit of AOTAutograd's cache. torch is patched only while somebody listens.
    """
    global _post_compile_original
    with _post_compile_lock:
        _post_compile_listeners.append(listener)
        if _post_compile_original is None:
            original = CompiledFxGraph.post_compile

            @functools.wraps(original)
            def post_compile(self: CompiledFxGraph, *args: Any, **kwargs: Any) -> None:
                for heard in tuple(_post_compile_listeners):
                    heard(self)
                original(self, *args, **kwargs)

            _post_compile_original = original
            CompiledFxGraph.post_compile = post_compile  # type: ignore[method-assign]


def remove_post_compile_listener(listener: Callable[[CompiledFxGraph], None]) -> None:
    """Undo one `add_post_compile_listener`; the last one restores torch's own method."""
    global _post_compile_original
    with _post_compile_lock:
        _post_compile_listeners.remove(listener)
        if not _post_compile_listeners and _post_compile_original is not None:
            CompiledFxGraph.post_compile = _post_compile_original  # type: ignore[method-assign]
            _post_compile_original = None


def compile_backward_at_once() -> AbstractContextManager[None]:
    """Context in which AOTAutograd compiles the backward with the forward, not at the first `.backward()`."""
    patch: AbstractContextManager[None] = functorch_config.patch(force_non_lazy_backward_lowering=True)
    return patch


@contextmanager
def callable_replaced(graph: CompiledFxGraph, replacement: Callable[[list[Any]], Any]) -> Iterator[None]:
    """Run `replacement` wherever `graph` is called; all that the first call would change in it is put back."""
    call, compile_context = graph.current_callable, getattr(graph, "_compile_context", None)
    graph.current_callable = replacement
    graph._compile_context = None
    try:
        yield
    finally:
        graph.current_callable = call
        graph._compile_context = compile_context


@contextmanager
def outside_tracing() -> Iterator[None]:
    """Leave the tracing context and all dispatch modes of a compilation under way."""
    with torch._guards.tracing(None), _disable_current_modes():
        yield


def memory_deltas(run: Callable[[], object]) -> tuple[list[int], object]:
    """Bytes that `run` takes from (positive) and gives back to (negative) the CPU allocator, and its result.

    The older of torch's two profilers: it starts in 0.1 ms, where the newer one takes a second the first time
    and prints to the terminal. The result is held until the record ends, so that it counts as taken.

    Raises:
        RuntimeError: A profiler runs already, or `run` raised it.
    """
    config = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
    torch._C._autograd._enable_profiler_legacy(config)
    try:
        result = run()
    finally:
        records = torch._C._autograd._disable_profiler_legacy()
    events = [event for thread in records for event in thread if str(event.kind()) == "memory_alloc"]
    return [event.cpu_memory_usage() for event in events], result


def profiler_is_running() -> bool:
    """Whether somebody records a profile now (a second one would raise)."""
    return bool(torch._C._autograd._profiler_enabled())


def allocation_alignment(device_type: str) -> int:
    """Bytes to a multiple of which the device's allocator rounds what it is asked for."""
    return CUDA_ALIGNMENT_BYTES if device_type == "cuda" else CPU_ALIGNMENT_BYTES


def symbol_hint(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> int | float | bool | None:
    """The number that a symbol stands for in the traced inputs; None when only the data decide it."""
    node = value.node
    hint: int | float | bool | None = node.hint if node.has_hint() else None
    return hint


# --- random state --------------------------------------------------------------------------------------------------


def run_and_save_rng_state() -> Any:
    """Higher-order operator ``(op, *args) -> (state, result)``."""
    return torch._prims.rng_prims.run_and_save_rng_state


def run_with_rng_state() -> Any:
    """Higher-order operator ``(state, op, *args) -> result``, which restores the generator afterwards."""
    return torch._prims.rng_prims.run_with_rng_state


def rng_state_value(node: fx.Node) -> torch.Tensor:
    """Fake tensor of the random state that executing `node` starts from."""
    value = node.meta["val"]
    first = value[0] if isinstance(value, (list, tuple)) else value
    with first.fake_mode:
        if first.device.type == "cuda":
            return torch.cuda.get_rng_state(first.device)
        return torch.get_rng_state()


def corrected_fake_result(func: Any, args: tuple[Any, ...], result: Any) -> Any:
    """`result` of an operator on fake tensors with the types that the real operator gives.

    On a CPU, batch norm of half-precision inputs with float32 parameters keeps its statistics in float32
    (``at::native::is_mixed_type``); torch's shape function gives them the type of the input.
    """
    if not getattr(func, "_schema", None) or not func._schema.name.startswith(_BATCH_NORMS):
        return result
    inputs = [arg for arg in args[:5] if isinstance(arg, torch.Tensor)]
    mixed = inputs[0].device.type == "cpu" and any(arg.dtype is torch.float32 for arg in inputs)
    if not mixed or "backward" in func._schema.name:
        return result
    statistics = [torch.empty_like(item, dtype=torch.float32) for item in result[1:3]]
    return (result[0], *statistics, *result[3:])


_BATCH_NORMS = ("aten::native_batch_norm", "aten::_native_batch_norm_legit", "aten::_batch_norm_with_update")


def new_fake(mode: Any, size: Any, stride: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """An empty fake tensor, at a tenth of the cost of the factory function, and unseen by dispatch modes."""
    with fake_tensor.in_kernel_invocation_manager(mode):
        meta = torch.empty_strided(size, stride, dtype=dtype, device="meta")
    return FakeTensor(mode, meta, device)


def fake_view(mode: Any, base: torch.Tensor, size: Any, stride: Any, offset: int) -> torch.Tensor:
    """`base.as_strided(size, stride, offset)` of a fake tensor, at a tenth of the cost; see `new_fake`."""
    with fake_tensor.in_kernel_invocation_manager(mode), torch.no_grad():
        meta = torch.as_strided(base, size, stride, offset)
    return FakeTensor(mode, meta, base.device)


def fake_call(node: fx.Node) -> tuple[Any, tuple[Any, ...], dict[str, Any], Any]:
    """The call that `node` makes, with fake tensors for its arguments and its result."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    return node.target, args, kwargs, node.meta.get("val")


# --- inner compilers -----------------------------------------------------------------------------------------------

_KEEP_PLANNED_MEMORY: dict[str, Any] = {"allow_buffer_reuse": False, "reorder_for_peak_memory": False}
"""Inductor's settings under which what it emits allocates and frees as the planned graphs say."""
_KEEP_PLANNED_MEMORY_ON_CPU: dict[str, Any] = {"layout_optimization": False}
"""The same for a CPU: channels-last copies of all convolution weights would be made first and saved."""
_planned = threading.local()


def keep_planned_memory(gm: fx.GraphModule) -> None:
    """Let the rest of `compile_with_inductor` keep to the planned memory of `gm`."""
    _planned.active = True
    values = (n.meta.get("val") for n in gm.graph.nodes if n.op == "placeholder")
    on_cpu = all(v.device.type == "cpu" for v in values if isinstance(v, torch.Tensor))
    for name, value in {**_KEEP_PLANNED_MEMORY, **(_KEEP_PLANNED_MEMORY_ON_CPU if on_cpu else {})}.items():
        setattr(inductor_config, name, value)


def compile_with_inductor(gm: fx.GraphModule, example_inputs: Any, partitioner: CustomPartitionerFn) -> Any:
    """Compile Dynamo's graph with Inductor, cutting joint graphs with `partitioner`; `gm` may be changed."""
    _guard_product_fusion()
    # The partitioner may change settings on the way; leaving the block restores them.
    changed = [*_KEEP_PLANNED_MEMORY, *_KEEP_PLANNED_MEMORY_ON_CPU]
    with inductor_config.patch({name: getattr(inductor_config, name) for name in changed}):
        try:
            with V.set_choices_handler(_planned_choices(type(V.choices))()):
                return compile_fx(gm, example_inputs, config_patches={"custom_partitioner_fn": partitioner})
        finally:
            _planned.active = False


@cache
def _planned_choices(base: type[InductorChoices]) -> type[InductorChoices]:
    """The user's choices of how to fuse, but no loop of a planned graph spans a kernel.

    A loop fused over a kernel runs at one of its ends, and so holds there what the plan frees at the other.
    """

    class PlannedChoices(base):  # type: ignore[misc,valid-type]
        @staticmethod
        def can_fuse(scheduler: Any, node1: Any, node2: Any, shared_data_score: int) -> bool:
            if getattr(_planned, "active", False) and _kernel_between(scheduler, node1, node2):
                return False
            return bool(base.can_fuse(scheduler, node1, node2, shared_data_score))

    return PlannedChoices


def _kernel_between(scheduler: Any, node1: Any, node2: Any) -> bool:
    """Whether a kernel stands, in the planned order, between the first and the last loop of the two."""
    orders = getattr(scheduler, "_remat_kernel_orders", None)
    if orders is None:
        orders = scheduler._remat_kernel_orders = sorted(n.min_order for n in scheduler.nodes if n.is_extern())
    first, last = min(node1.min_order, node2.min_order), max(node1.max_order, node2.max_order)
    return bisect.bisect_left(orders, first) != bisect.bisect_right(orders, last)


STORE = torch.ops.prims.inductor_force_stride_order
"""An operator that only says how its argument lies in memory, and so that it lies there."""


def stored(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """`node`, which Inductor writes to memory where it stands rather than inlining it into its readers."""
    value = node.meta["val"]
    if value.numel() == 1:
        return node
    new = graph.call_function(STORE.default, (node, list(value.stride())))
    new.meta = dict(node.meta)
    return new


@contextmanager
def code_generation_only() -> Iterator[None]:
    """Let Inductor emit wrappers without compiling kernels; what is made serves dry runs and is in no cache."""
    replaced = {
        name: getattr(AsyncCompile, name) for name in ("cpp", "cpp_pybinding", "triton") if hasattr(AsyncCompile, name)
    }
    try:
        for name in replaced:
            setattr(AsyncCompile, name, lambda *_, **__: _no_kernel)
        with inductor_config.patch(force_disable_caches=True):
            yield
    finally:
        for name, method in replaced.items():
            setattr(AsyncCompile, name, method)


def _no_kernel(*_: object, **__: object) -> None:
    raise RuntimeError("a step whose kernels were not compiled was executed")


@cache
def _guard_product_fusion() -> None:
    """Keep Inductor from fusing ``mm + x`` in planned graphs where that would run the product much later.

    The fused product runs where the sum stands; until then its arguments, freed by the plan, would be held.
    """
    for entries in post_grad.pass_patterns[2].patterns.values():
        for entry in entries:
            if entry.extra_check is post_grad.is_valid_addmm_fusion:
                entry.extra_check = _fuses_without_delay


def _fuses_without_delay(match: Any) -> bool:
    if not post_grad.is_valid_addmm_fusion(match):
        return False
    if not getattr(_planned, "active", False):
        return True
    product = next(n for n in match.nodes if n.target is torch.ops.aten.mm.default)
    node = product.next
    while node is not match.output_node() and node.op != "output":
        if node.op == "call_function" and _is_product(node):
            return False
        node = node.next
    return True


def _is_product(node: fx.Node) -> bool:
    """Whether the node is a kernel of its own: a product, convolution or attention."""
    packet = getattr(node.target, "overloadpacket", None)
    return packet is not None and packet in partitioners.get_default_op_list().compute_intensive_ops


def compile_with_interpreter(gm: fx.GraphModule, example_inputs: Any, partitioner: CustomPartitionerFn) -> Any:
    """Compile Dynamo's graph with an FX interpreter that frees every value at its last use."""
    backend = aot_autograd(fw_compiler=_interpret, bw_compiler=_interpret, partition_fn=partitioner)
    return backend(gm, example_inputs)


def _interpret(gm: fx.GraphModule, example_inputs: Any) -> Callable[[list[Any]], Any]:
    def run(arguments: list[Any]) -> Any:
        return fx.Interpreter(gm).boxed_run(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def free_device_bytes(example_inputs: Any) -> int | None:
    """Bytes that the accelerator of the inputs has left for a step; `None` on a CPU, which has no such limit."""
    devices = {x.device for x in example_inputs if isinstance(x, torch.Tensor) and x.device.type == "cuda"}
    if not devices:
        return None
    free = []
    for device in sorted(devices, key=str):
        unused, total = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free.append(int(unused + cached - DEVICE_RESERVE * total))
    return max(min(free), 1)


DEVICE_RESERVE = 0.05
"""Part of an accelerator's memory left to the driver, libraries and fragmentation."""


def shown_to_user(error: Exception) -> Exception:
    """An exception of the same type that Dynamo hands to the user as it is, rather than wrapped."""
    kind = type(error)
    shown = type(kind.__name__, (kind, ShortenTraceback), {"__module__": kind.__module__})
    copied = shown.__new__(shown, *error.args)
    copied.__dict__.update(error.__dict__)
    copied.args = error.args
    copied.first_useful_frame = None
    return copied


def inductor_fingerprint() -> str:
    """Digest of Inductor's configuration."""
    return hashlib.sha256(repr(sorted(inductor_config.get_config_copy().items(), key=str)).encode()).hexdigest()
