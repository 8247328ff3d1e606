"""One traced program whose forward and backward graphs can be exchanged: traced once, run under many plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from builders import with_tiers
from remat_compiler import torch_compat
from remat_compiler.capture.graph import CapturedGraph, capture
from remat_compiler.capture.in_place import bytes_overwritten
from remat_compiler.capture.mutation import protect_changed_inputs
from remat_compiler.costs.op_call import OpCall
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.ir.graph import Phase, StorageKind
from remat_compiler.ir.invariants import check_graph
from remat_compiler.ir.plan import Plan, Tier
from remat_compiler.ir.problem import CostTable, RematProblem
from remat_compiler.offload.place import Place
from remat_compiler.rewrite.lower import lower
from remat_compiler.rewrite.overwriting import overwrite_arguments
from remat_compiler.simulate.timeline import MemoryTimeline, simulate
from remat_compiler.simulate.verify import verify
from rewrite.random_plans import random_plan

TABLE = WorkspaceTable()
UNLIMITED = 10**15
PLACES = {tier: Place.of(tier) for tier in Tier}


class PlannedStep:
    """A module traced by AOTAutograd, to be run under any plan by the FX interpreter.

    Buffers are changed by the graph itself, or, as AOTAutograd does where it must, by the wrapper around it.

    Attributes:
        captured: The joint graph as data; unset where nothing needs a gradient.
        costs: Times and measured workspaces.
        needs_backward: Whether a joint graph was cut.
        forward_graph: Forward graph of the plan in use.
        backward_graph: Backward graph of the plan in use.
        overwriting: Operators of the plan in use that overwrite an argument.
    """

    captured: CapturedGraph
    costs: CostTable

    def __init__(
        self,
        module: nn.Module,
        inputs: Sequence[Tensor],
        *,
        change_in_graph: bool = True,
        dynamo: bool = False,
        inplace_buffers: bool = False,
    ) -> None:
        """Trace `module`; with `dynamo`, as `torch.compile` does, which is slower, but knows checkpoint regions."""
        self.needs_backward = False
        self.inplace_buffers = inplace_buffers
        self.overwriting: list[fx.Node] = []
        self.forward_graph: fx.GraphModule | None = None
        self.backward_graph: fx.GraphModule | None = None
        self._metadata: Any = None
        compilers: dict[str, Any] = {
            "fw_compiler": self._compile_forward,
            "bw_compiler": lambda gm, _: _boxed(lambda: self.backward_graph or gm),
            "partition_fn": self._cut,
            "keep_inference_input_mutations": change_in_graph,
        }
        self.call: Callable[..., Any]
        with functorch_config.patch(force_non_lazy_backward_lowering=True, enable_autograd_cache=False):
            if dynamo:
                torch._dynamo.reset()
                self.call = torch.compile(module, backend=aot_autograd(**compilers), dynamic=False)
                self.call(*inputs)
                return
            context = TracingContext(FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True))
            with tracing(context):
                self.call = aot_module_simplified(module, inputs, ignore_shape_env=True, **compilers)  # type: ignore[arg-type]

    def _compile_forward(self, gm: fx.GraphModule, _: object) -> Callable[[list[Any]], Any]:
        self._metadata = TracingContext.get().fw_metadata
        return _boxed(lambda: self.forward_graph or gm)

    def _cut(
        self,
        joint: fx.GraphModule,
        _: Sequence[object],
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: Sequence[int] | None = None,
        **__: object,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        static = tuple(static_lifetime_input_indices or ())
        torch_compat.prepare_joint(joint, num_fwd_outputs, static)
        protect_changed_inputs(joint, num_fwd_outputs)
        self.captured = capture(joint, num_fwd_outputs=num_fwd_outputs, static_input_indices=static, fused=False)
        check_graph(self.captured.graph)
        self.costs = measured_workspaces(
            self.captured, bytes_overwritten(self.captured) if self.inplace_buffers else {}
        )
        self.needs_backward = True
        self.use(random_plan(self.captured.graph, Random(0)))
        assert self.forward_graph is not None
        assert self.backward_graph is not None
        return self.forward_graph, self.backward_graph

    def tangents_are(self, outputs: Sequence[Tensor]) -> bool:
        """Whether the graph takes one tangent an output, so that nothing is allocated around it.

        Also that it has no ``aten.copy`` into a view: the size that torch's fake tensors give its result depends on
        what their cache has seen before.
        """
        if any(op.target == "aten.copy.default" for op in self.captured.graph.ops):
            return False
        tangents = [s.size_bytes for s in self.captured.graph.storages if s.kind is StorageKind.TANGENT]
        differentiable = [o for o in outputs if o.requires_grad]
        own = {o.untyped_storage().data_ptr() for o in outputs}
        return len(own) == len(outputs) and tangents == [o.numel() * o.element_size() for o in differentiable]

    def use(self, plan: Plan) -> MemoryTimeline:
        """Run `plan` from now on; it is verified, its peak included."""
        timeline = simulate(self.captured.graph, self.costs, plan)
        problem = with_tiers(RematProblem(self.captured.graph, self.costs, UNLIMITED))
        assert verify(problem, plan, timeline.peak_bytes) == []
        lowered = lower(self.captured, plan, PLACES)
        self.forward_graph, self.backward_graph = lowered.forward, lowered.backward
        if self.inplace_buffers:
            first = overwrite_arguments(lowered.forward, self.captured.num_fwd_outputs)
            self.overwriting = [*first, *overwrite_arguments(lowered.backward)]
        self._note_saved()
        return timeline

    def _note_saved(self) -> None:
        """Since 2.14 AOTAutograd notes which saved tensors are inputs; it was done with the plan that was traced."""
        if self._metadata is None or not hasattr(self._metadata, "saved_tensor_is_graph_input"):
            return
        assert self.forward_graph is not None
        returned: Any = self.forward_graph.graph.output_node().args[0]
        saved = returned[self._metadata.num_forward :]
        tensors = [node for node in saved if isinstance(node.meta["val"], Tensor)]
        self._metadata.saved_tensor_is_graph_input = [node.op == "placeholder" for node in tensors]


def joint_order(captured: CapturedGraph) -> Plan:
    """The plan that runs every operator once and saves all that the backward reads."""
    forward = [op.id for op in captured.graph.ops if op.phase is Phase.FORWARD]
    rest = [op.id for op in captured.graph.ops if op.phase is not Phase.FORWARD]
    return Plan((*forward, *rest), len(forward))


def measured_workspaces(captured: CapturedGraph, overwritten: Mapping[fx.Node, int] | None = None) -> CostTable:
    """Costs with measured workspaces, less what is overwritten, and a time of one nanosecond an operator."""
    less = overwritten or {}
    workspace = tuple(_workspace(*torch_compat.fake_call(node)[:3]) - less.get(node, 0) for node in captured.main)
    count = len(workspace)
    return CostTable((1,) * count, workspace, ("test",) * count)


def _workspace(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Measured without shortcuts: a pointwise operator wraps a number among its arguments in tensors of 12 bytes."""
    call = OpCall.any(func, args, kwargs)
    return 0 if call is None else TABLE.resolve([call]).get(call.key, 0)


def _boxed(graph: Callable[[], fx.GraphModule]) -> Callable[[list[Any]], Any]:
    def run(arguments: list[Any]) -> Any:
        return fx.Interpreter(graph()).boxed_run(arguments)

    setattr(run, "_boxed_call", True)  # noqa: B010
    return run


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """All that a step leaves behind.

    Attributes:
        outputs: What the forward returned.
        gradients: One an input and parameter that requires one; `None` where it takes no part.
        buffers: Values of the buffers afterwards.
        random_state: State of the generator afterwards.
    """

    outputs: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]
    buffers: dict[str, Tensor]
    random_state: Tensor

    def differences(self, other: Outcome) -> list[str]:
        """What is not equal bit for bit."""
        found = [f"output {i}" for i, (a, b) in enumerate(zip(self.outputs, other.outputs)) if not _equal(a, b)]
        pairs = zip(self.gradients, other.gradients)
        found += [f"gradient {i}" for i, (a, b) in enumerate(pairs) if not _equal(a, b)]
        found += [f"buffer {name}" for name in self.buffers if not _equal(self.buffers[name], other.buffers[name])]
        if not torch.equal(self.random_state, other.random_state):
            found.append("random state")
        return found

    def close_to(self, other: Outcome) -> bool:
        """Whether all is equal but for gradients, which are to float tolerance."""
        pairs = zip(self.gradients, other.gradients)
        return all(d.startswith("gradient") for d in self.differences(other)) and all(
            a is b if a is None or b is None else torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
            for a, b in pairs
        )


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())


def run_step(
    module: nn.Module, call: Callable[..., Any], inputs: Sequence[Tensor], buffers: dict[str, Tensor]
) -> Outcome:
    """Run one step from the given buffers and a fixed random state."""
    with torch.no_grad():
        for name, value in buffers.items():
            module.get_buffer(name).copy_(value)
    torch.manual_seed(1234)
    outputs = call(*inputs)
    gradients = backward(module, inputs, outputs)
    return Outcome(
        tuple(o.detach().clone() for o in outputs),
        gradients,
        {name: module.get_buffer(name).clone() for name in buffers},
        torch.get_rng_state(),
    )


def backward(module: nn.Module, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Gradients of inputs and parameters for tangents of ones."""
    wanted = [t for t in (*inputs, *module.parameters()) if t.requires_grad]
    roots = [o for o in outputs if o.requires_grad]
    return torch.autograd.grad(roots, wanted, [torch.ones_like(o) for o in roots], allow_unused=True)
