"""Random operators that run again give what they gave before; where PyTorch's own budget does not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._functorch import config as functorch_config

from remat_compiler.ir.graph import OpId, Phase, Trait
from remat_compiler.ir.plan import Plan
from rewrite.planned_step import PlannedStep, joint_order, run_step


class Dropped(nn.Module):
    """Two dropouts around a product."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16) / 4)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        x = F.dropout(x @ self.weight, 0.3)
        x = F.dropout(torch.tanh(x @ self.weight), 0.5)
        return ((x @ self.weight).sin(),)


class Attending(nn.Module):
    """Attention with dropout, twice with the same arguments: the two draw different masks."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8) / 3)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        q = (x @ self.weight).reshape(1, -1, 2, 4).transpose(1, 2)
        once = F.scaled_dot_product_attention(q, q, q, dropout_p=0.4)
        again = F.scaled_dot_product_attention(q, q, q, dropout_p=0.4)
        return ((once * again).transpose(1, 2).flatten(),)


def repeated(step: PlannedStep, times: int) -> Plan:
    """Before each of the first backward operators, everything that may run again runs again."""
    ops = step.captured.graph.ops
    base = joint_order(step.captured)
    again = [op.id for op in ops if op.phase is Phase.FORWARD and op.may_recompute and op.writes]
    steps: list[OpId] = []
    for position, op_id in enumerate(base.steps):
        if base.boundary <= position < base.boundary + times:
            steps.extend(again)
        steps.append(op_id)
    return Plan(tuple(steps), base.boundary)


def prepared(module: nn.Module, width: int) -> tuple[PlannedStep, Sequence[Tensor]]:
    inputs = (torch.randn(4, width, requires_grad=True),)
    return PlannedStep(module, inputs), inputs


@pytest.mark.parametrize("times", [0, 1, 2, 4])
@pytest.mark.parametrize(("kind", "width"), [(Dropped, 16), (Attending, 8)])
def test_a_random_operator_may_run_again_and_again(kind: type[nn.Module], width: int, times: int) -> None:
    module = kind()
    step, inputs = prepared(module, width)
    step.use(repeated(step, times))
    assert run_step(module, step.call, inputs, {}).differences(run_step(module, module, inputs, {})) == []


class TwoNoises(nn.Module):
    """Two equal calls, which torch's merging of equal nodes takes for one."""

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (x * torch.randn_like(x) + torch.randn_like(x) * x.sin(),)


def test_equal_random_operators_are_not_merged() -> None:
    module = TwoNoises()
    step, inputs = prepared(module, 8)
    assert sum(Trait.RANDOM in op.traits for op in step.captured.graph.ops) == 2
    assert run_step(module, step.call, inputs, {}).differences(run_step(module, module, inputs, {})) == []


def test_unused_random_operators_do_not_move_into_the_other_half() -> None:
    """Also where torch takes random operators for impure and removes none of them."""
    step, _ = prepared(Dropped(), 16)
    step.use(repeated(step, 1))
    assert step.forward_graph is not None
    assert step.backward_graph is not None
    forward = {str(n.target) for n in step.forward_graph.graph.nodes if n.op == "call_function"}
    backward = {str(n.target) for n in step.backward_graph.graph.nodes if n.op == "call_function"}
    assert "run_and_save_rng_state" in forward
    assert "run_with_rng_state" not in forward
    assert "run_with_rng_state" in backward
    assert backward.isdisjoint({"run_and_save_rng_state", "aten.native_dropout.default"})


class DrawsInBackward(torch.autograd.Function):
    """Draws noise for the gradient, which depends on no tangent."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return grad * torch.rand_like(x)


class DrawsInBoth(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (F.dropout(DrawsInBackward.apply(x * 3), 0.5),)  # type: ignore[no-untyped-call]


def test_noise_of_the_backward_is_drawn_in_the_backward() -> None:
    module = DrawsInBoth()
    step, inputs = prepared(module, 4)
    random = [op for op in step.captured.graph.ops if Trait.RANDOM in op.traits]
    assert [op.phase for op in random] == [Phase.FORWARD, Phase.BACKWARD]
    assert run_step(module, step.call, inputs, {}).differences(run_step(module, module, inputs, {})) == []


class ScalesGradient(torch.autograd.Function):
    """Needs its second argument in the backward alone."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return x * 2

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return grad * mask, None


class DrawsForTheBackward(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor]:
        masked = ScalesGradient.apply(x * 3, torch.rand_like(x))  # type: ignore[no-untyped-call]
        return (F.dropout(masked, 0.5),)


def test_noise_that_only_the_backward_needs_is_drawn_where_the_program_draws_it() -> None:
    module = DrawsForTheBackward()
    step, inputs = prepared(module, 4)
    assert {op.phase for op in step.captured.graph.ops if Trait.RANDOM in op.traits} == {Phase.FORWARD}
    assert run_step(module, step.call, inputs, {}).differences(run_step(module, module, inputs, {})) == []


def test_pytorchs_own_budget_draws_other_masks() -> None:
    """What this project does not do; when this fails, PyTorch has mended it, and the documentation must say so."""
    module, x = Dropped(), torch.randn(4, 16, requires_grad=True)
    eager = run_step(module, module, (x,), {})
    torch._dynamo.reset()
    with functorch_config.patch(activation_memory_budget=0.1, enable_autograd_cache=False):
        compiled = torch.compile(module, backend="aot_eager_decomp_partition")
        theirs = run_step(module, compiled, (x,), {})
    assert any(difference.startswith("gradient") for difference in theirs.differences(eager))
