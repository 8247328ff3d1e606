"""Fake tensors: made, viewed, and corrected if torch gives them other bytes than real ones have."""

from __future__ import annotations

import operator
from math import prod
from typing import Any

import torch
from torch import fx
from torch._prims_common import suggest_memory_format
from torch._subclasses import fake_tensor

from remat_compiler.torch_compat.operators import facts_of
from remat_compiler.torch_compat.sizes import size_hint

FakeTensor = fake_tensor.FakeTensor

FakeTensorMode = fake_tensor.FakeTensorMode

VALUE_ERRORS = (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException)
"""Errors of operators whose result, or its shape, depends on data; each has the operator as ``func``."""
FAKE_RUN_ERRORS: tuple[type[Exception], ...] = (
    *VALUE_ERRORS,
    fake_tensor.UnsupportedFakeTensorException,
    fake_tensor.UnsupportedOperatorException,
    fake_tensor.UnsupportedMutationAliasingException,
    NotImplementedError,
)
"""Errors of operators on fake tensors if the result depends on data, or no shape function is registered."""

_SEEDS = (2, 3)
"""Positions of seed and offset among the results of attention that has them on the CPU."""
_NORMS = ("types", "types and layout")


def active_fake_mode() -> Any:
    """The innermost fake mode that is entered; `None` if none is."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)


def corrected_fake_result(func: Any, args: tuple[Any, ...], result: Any) -> Any:
    """`result` of an operator on fake tensors with the types, the layout and the storage that the real operator gives.

    The wait for a collective returns its argument; the shape function allocates.  Losses that are summed or averaged
    shrink a tensor of all their terms, which leaves its storage as large as it was.  On a CPU torch's shape functions
    differ from its operators in some more cases:

    - Batch, layer and group norm of half-precision inputs with float32 parameters keep their statistics in float32
      (``at::native::is_mixed_type``); the shape functions give them the type of the input. Group norm's gradient has
      the type of the input; the shape function gives it that of the parameters.
    - Batch norm of a transposed input has a contiguous or channels-last result; the shape function gives it the
      strides of the input.
    - Unfolding and folding allocate a result like their input and shrink it, which leaves its storage as large as it
      was.
    - Scatters into a view copy the storage of their argument, and return the view of it that the argument is; the shape
      function copies the argument.

    On a GPU, attention that takes the memory-efficient kernel returns its random seed and offset on the CPU, unless a
    CUDA graph is captured (``_efficient_attention_forward`` of ATen's ``attention.cu``); the shape function gives both
    the device of the query.
    """
    facts = facts_of(func)
    if facts.collective == "wait":
        return args[0]
    if _shrinks_its_result(func):
        return _shrunken(func, args, result)
    if facts.scatters_into:
        return _in_copied_storage(args[0], result)
    if facts.result == "seed on CPU":
        return tuple(
            torch.empty_like(one, device="cpu") if i in _SEEDS and isinstance(one, torch.Tensor) else one
            for i, one in enumerate(result)
        )
    if facts.result not in _NORMS:
        return result
    # Tensors first: input, weight, bias and running statistics; a backward has the gradient before the input.
    inputs = [arg for arg in args[:5] if isinstance(arg, torch.Tensor)]
    if inputs[0].device.type != "cpu":
        return result
    backward = "backward" in func._schema.name
    normalised, *rest = result
    like = inputs[1 if backward else 0]
    # A backward gives no gradient of the input if none is needed.
    if normalised is not None and facts.result == "types and layout":
        normalised = torch.empty_like(normalised, memory_format=suggest_memory_format(like))
    results = [normalised, *rest]
    for position, dtype in _types_of_norm(func._schema.name, inputs).items():
        if results[position] is not None and results[position].dtype is not dtype:
            results[position] = torch.empty_like(results[position], dtype=dtype)
    return tuple(results)


def _types_of_norm(name: str, inputs: list[torch.Tensor]) -> dict[int, torch.dtype]:
    """Types that a CPU gives results of a normalisation which has float32 among its inputs, by their positions."""
    if not any(one.dtype is torch.float32 for one in inputs):
        return {}
    if "backward" not in name:
        return dict.fromkeys((1, 2), torch.float32)
    return {0: inputs[1].dtype} if name == "aten::native_group_norm_backward" else {}


def correct_norms(graph: fx.Graph) -> None:
    """Give the results of normalisations in a traced graph, and views of them, the types that interpreting it gives."""
    changed: set[fx.Node] = set()
    for node in graph.nodes:
        value = node.meta.get("val")
        if node.target is operator.getitem:
            dtype = _type_of_item(node)
            if dtype is not None and value is not None and value.dtype is not dtype:
                with value.fake_mode:
                    node.meta["val"] = torch.empty_like(value, dtype=dtype)
                changed.add(node)
        elif getattr(node.target, "is_view", False) and not changed.isdisjoint(node.all_input_nodes):
            func, args, kwargs, _ = fake_call(node)
            with value.fake_mode:
                node.meta["val"] = func(*args, **kwargs)
            changed.add(node)


def _type_of_item(node: fx.Node) -> torch.dtype | None:
    """The type of a result of a normalisation on a CPU if it is known to differ from the traced one."""
    made, position = node.args
    assert isinstance(made, fx.Node)
    assert isinstance(position, int)
    target: Any = made.target
    if facts_of(target).result not in _NORMS:
        return None
    inputs = [one for one in fake_call(made)[1][:5] if isinstance(one, torch.Tensor)]
    return _types_of_norm(target._schema.name, inputs).get(position) if inputs[0].device.type == "cpu" else None


def is_seed_on_cpu(node: fx.Node) -> bool:
    """Whether the node is a seed or offset of attention, which lies on the CPU whatever the trace says."""
    if node.target is not operator.getitem or node.args[1] not in _SEEDS:
        return False
    made: Any = node.args[0]
    return facts_of(made.target).result == "seed on CPU"


def value_as_run(node: fx.Node) -> Any:
    """The value that `node` has in the traced graph, in a storage as large as the real operator leaves it."""
    if not _shrinks_its_result(node.target):
        return node.meta.get("val")
    func, args, _, traced = fake_call(node)
    return _shrunken(func, args, traced)


def _shrinks_its_result(func: Any) -> bool:
    """Whether the operator may allocate more than its result needs; given a tensor for its result, it does not."""
    shrinks = facts_of(func).result in ("shrunk input", "shrunk terms")
    return shrinks and not func._schema.is_mutable


def _shrunken(func: Any, args: tuple[Any, ...], result: torch.Tensor) -> torch.Tensor:
    """A tensor like `result`, in the storage of what was shrunk to it."""
    elements: Any
    if facts_of(func).result == "shrunk input":
        if result.device.type != "cpu" or size_hint(args[0].numel()) <= size_hint(result.numel()):
            return result
        elements = args[0].numel()
    elif result.dim() == 0:
        elements = prod(torch.broadcast_shapes(args[0].shape, args[1].shape))  # type: ignore[no-untyped-call]
    else:
        return result
    return result.new_empty(elements).as_strided(result.shape, result.stride())


def _in_copied_storage(whole: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """A tensor like `result`, in a copy of the storage of `whole` at the place of that."""
    # Its elements, each as often as it is read, are copied.
    if is_expanded(whole):
        return result
    elements = whole.untyped_storage().nbytes() // whole.element_size()
    return result.new_empty((elements,)).as_strided(whole.shape, whole.stride(), whole.storage_offset())


def is_expanded(value: torch.Tensor) -> bool:
    """Whether several indices of a dimension read one element, which no write into a view may change for one index."""
    strides: tuple[Any, ...] = value.stride()
    # A stride is 0 by the operator that made it, and never a symbol.
    return any(
        isinstance(stride, int) and stride == 0 and size_hint(size) > 1 for stride, size in zip(strides, value.shape)
    )


def is_laid_out_as_traced(node: fx.Node, item: object) -> bool:
    """Whether a result of `node`, or the given item of it, has the type, the layout and the storage that torch traced.

    `corrected_fake_result` lists those that have not; of symbolic sizes among these nothing is known.
    """
    func, args, _, traced = fake_call(node)
    if _shrinks_its_result(func):
        return False
    if facts_of(func).result != "types and layout":
        return True
    # Statistics may be of another type.
    if item != 0 or any(isinstance(a, torch.Tensor) and a._has_symbolic_sizes_strides for a in args):
        return False
    real = corrected_fake_result(func, args, traced)[0]
    return isinstance(real, torch.Tensor) and real.stride() == traced[0].stride()


def new_fake(mode: Any, size: Any, stride: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """An empty fake tensor, at a tenth of the cost of the factory function, and not seen by dispatch modes."""
    # Within it torch runs operators on meta tensors directly, past all dispatch modes.
    with fake_tensor.in_kernel_invocation_manager(mode):
        meta = torch.empty_strided(size, stride, dtype=dtype, device="meta")
    return FakeTensor(mode, meta, device)


def fake_view(mode: Any, base: torch.Tensor, size: Any, stride: Any, offset: int) -> torch.Tensor:
    """`base.as_strided(size, stride, offset)` of a fake tensor, at a tenth of the cost; see `new_fake`."""
    # Not recorded by autograd: the view stands for an allocation or an input, as in emitted code.
    with fake_tensor.in_kernel_invocation_manager(mode), torch.no_grad():
        meta = torch.as_strided(base, size, stride, offset)
    return FakeTensor(mode, meta, base.device)


def fake_call(node: fx.Node) -> tuple[Any, tuple[Any, ...], dict[str, Any], Any]:
    """The call that `node` makes, with fake tensors for its arguments and its result, and the graphs that it runs."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), _fake_argument)
    return node.target, args, kwargs, node.meta.get("val")


def _fake_argument(node: fx.Node) -> Any:
    owner = node.graph.owning_module
    if node.op == "get_attr" and "val" not in node.meta and owner is not None:
        # A graph, which stands in the module under this name.
        return operator.attrgetter(str(node.target))(owner)
    return node.meta.get("val")
