"""What a plan may not do with an operator, and the reason that people are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch._higher_order_ops.flex_attention import flex_attention as flex_hop
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional
from torch.nn.attention import flex_attention
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

from costs.captured import captured
from remat_compiler.capture.graph import CapturedGraph, capture
from remat_compiler.capture.operators import traits_of
from remat_compiler.costs.roofline import flops_of
from remat_compiler.ir.graph import Op, Phase, SavePolicy, Trait
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.rewrite.lower import lower
from remat_compiler.simulate.rules import Rule
from remat_compiler.simulate.verify import verify
from rewrite.planned_step import UNLIMITED, PlannedStep, joint_order, run_step
from rewrite.random_plans import random_plan


@torch.library.custom_op("remat_tests::triple", mutates_args=())
def triple(x: Tensor) -> Tensor:
    return x * 3


@triple.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


triple.register_autograd(lambda ctx, grad: grad * 3)


class Calls(nn.Module):
    """Runs a function between two products."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(8, 8) / 3)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (torch.tanh(self.function(torch.sin(x @ self.weight)) @ self.weight),)


def traced(function: Callable[[Tensor], Tensor]) -> tuple[nn.Module, PlannedStep, tuple[Tensor]]:
    module, inputs = Calls(function), (torch.randn(4, 8, requires_grad=True),)
    return module, PlannedStep(module, inputs, dynamo=True), inputs


def found(step: PlannedStep, name: str) -> Op:
    return next(op for op in step.captured.graph.ops if name in op.target)


def test_a_custom_operator_is_not_repeated_and_says_why() -> None:
    module, step, inputs = traced(lambda x: triple(x).sin())
    assert "not known to be free of side effects" in found(step, "triple").no_recompute
    _check_random_plans(module, step, inputs)


def test_attention_with_scores_of_the_program_may_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    # It trains on GPUs only, and is the same operator on a CPU.
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)

    def attended(x: Tensor) -> Tensor:
        query = x.view(1, 1, 4, 8)
        key, value = query * 2, query + 1
        result: Any = flex_attention.flex_attention(query, key, value, score_mod=lambda s, b, h, i, j: s + (i - j))
        return result.view(4, 8)  # type: ignore[no-any-return]

    module, step, inputs = traced(attended)
    operator = found(step, "flex_attention")
    assert operator.may_recompute
    assert not operator.traits
    nodes = {node.name: node for nodes in step.captured.nodes for node in nodes}
    shape = torch.Size((1, 1, 4, 8))
    assert flops_of(nodes[operator.name]) == sdpa_flop_count(shape, shape, shape)  # type: ignore[no-untyped-call]
    backward = nodes[found(step, "flex_attention_backward").name]
    assert flops_of(backward) == sdpa_backward_flop_count(shape, shape, shape, shape)  # type: ignore[no-untyped-call]
    _check_random_plans(module, step, inputs)


@pytest.mark.parametrize(
    ("hop", "inner", "is_known"),
    [
        (triton_kernel_wrapper_functional, None, True),
        (flex_hop, torch.ops.aten.add.Tensor, True),
        # Scores that are dropped are others each time.
        (flex_hop, torch.ops.aten.bernoulli.default, False),
        (flex_hop, torch.ops.aten.add_.Tensor, False),
        (torch.ops.higher_order.cond, torch.ops.aten.add.Tensor, False),
    ],
)
def test_higher_order_operators_are_known_that_torch_makes_functional(hop: Any, inner: Any, is_known: bool) -> None:
    """The functions within them decide, too."""
    root, graph = nn.Module(), fx.Graph()
    x = graph.placeholder("primals_1")
    args: tuple[Any, ...] = (x,)
    if inner is not None:
        scores = fx.Graph()
        score = scores.placeholder("score")
        scores.output(scores.call_function(inner, (score, 1)))
        root.scores = fx.GraphModule({}, scores)
        args = (x, graph.get_attr("scores"))
    node = graph.call_function(hop, args)
    graph.output(node)
    fx.GraphModule(root, graph)
    assert traits_of(node) == (frozenset() if is_known else frozenset({Trait.UNKNOWN}))


def test_a_custom_operator_in_a_checkpoint_region_is_saved() -> None:
    """The region cannot be recomputed as the user asks, so its custom operator's result crosses."""
    module, step, inputs = traced(lambda x: checkpoint(lambda y: triple(y).sin().cos(), x, use_reentrant=False))
    assert found(step, "triple").save_policy is not SavePolicy.MUST_NOT_SAVE
    _check_random_plans(module, step, inputs)


@pytest.fixture
def ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("ranks")
def test_collectives_run_once() -> None:
    import torch.distributed._functional_collectives as collectives

    module, step, inputs = traced(lambda x: collectives.all_reduce(x, "sum", [0, 1]).sin())
    reduced = [op for op in step.captured.graph.ops if "_c10d_functional" in op.target]
    assert reduced
    assert all("communicates between ranks" in op.no_recompute for op in reduced)
    for seed in range(8):
        plan = random_plan(step.captured.graph, Random(seed))
        assert all(plan.steps.count(op.id) == 1 for op in reduced)
        step.use(plan)
        run_step(module, step.call, inputs, {})


@pytest.mark.usefixtures("ranks")
def test_a_wait_is_part_of_its_collective_and_returns_its_memory() -> None:
    import torch.distributed._functional_collectives as collectives

    _, step, _ = traced(lambda x: collectives.all_gather_tensor(x.exp(), 0, [0, 1]).sin())
    captured = step.captured
    gathers = [op for op in captured.graph.ops if "all_gather" in op.target]
    assert [len(op.writes) for op in gathers] == [1]
    (gather,) = gathers
    assert [name.startswith(("all_gather", "wait")) for name in gather.nodes] == [True, True]
    # Whoever reads the result of the wait reads the memory of the collective.
    readers = [op.name for op in captured.graph.ops if gather.writes[0] in op.reads]
    assert any("sin" in name for name in readers)
    assert not any("wait" in op.target for op in captured.graph.ops)


class Sharded(nn.Module):
    """A parameter of which the rank holds a half, gathered by a function where it is read."""

    def __init__(self, gather: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.gather = gather
        self.part = nn.Parameter(torch.randn(4, 8) / 3)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (torch.tanh(torch.sin(x) @ self.gather(self.part)),)


def gather_of(gather: Callable[[Tensor], Tensor], *, may_repeat: bool = True) -> Op:
    """The gather in the graph of a module that gathers its parameter so."""
    module, x = Sharded(gather), torch.randn(4, 8, requires_grad=True)

    step = PlannedStep(module, (x,), dynamo=True)
    again = capture(
        step.captured.joint,
        num_fwd_outputs=step.captured.num_fwd_outputs,
        static_input_indices=(),
        fused=False,
        gathers=may_repeat,
    )
    return next(op for op in again.graph.ops if "all_gather" in op.target)


@pytest.mark.usefixtures("ranks")
def test_a_gather_of_an_input_may_be_repeated_where_ranks_agree() -> None:
    import torch.distributed._functional_collectives as collectives

    def gather(part: Tensor) -> Tensor:
        return collectives.all_gather_tensor_autograd(part, 0, dist.group.WORLD)

    def casting(part: Tensor) -> Tensor:
        return gather(part.to(torch.float64).view(8, 4).t().contiguous()).to(torch.float32)

    for of_input in (gather, casting):
        op = gather_of(of_input)
        assert {Trait.COLLECTIVE, Trait.GATHER} == op.traits
        assert (op.may_recompute, op.save_policy) == (True, SavePolicy.FREE)
        held = gather_of(of_input, may_repeat=False)
        assert (held.may_recompute, held.save_policy) == (False, SavePolicy.MUST_SAVE)
    # What is computed may be dropped by one rank, and kept by another one.
    computed = gather_of(lambda part: gather(part.exp()))
    assert computed.traits == {Trait.COLLECTIVE}
    assert not computed.may_recompute


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize(
    ("fused", "prepared", "waits_late"),
    [(True, lambda x: x, True), (False, lambda x: x, False), (True, torch.exp, False), (True, lambda x: x.t(), True)],
)
def test_a_wait_stands_before_the_first_reader_of_what_is_communicated(
    fused: bool, prepared: Callable[[Tensor], Tensor], waits_late: bool
) -> None:
    """Products between them run while ranks communicate, unless the argument would be held for it alone."""
    import torch.distributed._functional_collectives as collectives

    weight = torch.randn(8, 8, requires_grad=True)

    def overlapped(x: Tensor) -> Tensor:
        reduced = collectives.all_reduce(prepared(x), "sum", [0, 1])
        return (x @ weight) @ weight + reduced

    orders: list[list[str]] = []

    def look(graph: CapturedGraph) -> None:
        nodes = lower(graph, Plan.saving_all(graph.graph)).forward.graph.nodes
        names = [node.name for node in nodes if node.name.startswith(("all_reduce", "wait", "mm", "add"))]
        orders.append(names)

    captured(overlapped, (torch.randn(8, 8),), fused=fused, look=look)
    late, at_once = ["mm", "mm_1", "wait_tensor", "add"], ["wait_tensor", "mm", "mm_1", "add"]
    assert orders == [["all_reduce", *(late if waits_late else at_once)]]


@pytest.mark.usefixtures("ranks")
def test_collectives_of_a_checkpoint_region_are_saved() -> None:
    import torch.distributed._functional_collectives as collectives

    def region(x: Tensor) -> Tensor:
        return collectives.all_reduce(x.exp(), "sum", [0, 1]).sin().cos()

    _, step, _ = traced(lambda x: checkpoint(region, x, use_reentrant=False))
    policies = {op.name: op.save_policy for op in step.captured.graph.ops}
    assert policies["all_reduce"] is SavePolicy.MUST_SAVE
    assert SavePolicy.MUST_NOT_SAVE in policies.values()


def test_sizes_that_depend_on_data_are_not_repeated() -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        from end_to_end.compiling import differences_from_eager

        class Selects(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.randn(8))

            def forward(self, x: Tensor) -> Tensor:
                return (torch.masked_select(torch.sin(x), x > 0) * self.weight.sum()).tanh().sum()

        assert differences_from_eager(Selects(), (torch.randn(4, 8),), memory_budget="min") == []


def test_a_checkpoint_region_is_not_saved() -> None:
    module, step, inputs = traced(lambda x: checkpoint(lambda y: torch.exp(torch.sin(y)).cos(), x, use_reentrant=False))
    exp = found(step, "aten.exp")
    assert exp.save_policy is SavePolicy.MUST_NOT_SAVE
    saved = verify(RematProblem(step.captured.graph, step.costs, UNLIMITED), joint_order(step.captured))
    assert Rule.SAVED in {violation.rule for violation in saved}
    _check_random_plans(module, step, inputs)


@pytest.mark.parametrize("policy", [CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE])
def test_a_selective_policy_is_followed(policy: CheckpointPolicy) -> None:
    def choose(_: Any, op: Any, *__: Any, **___: Any) -> CheckpointPolicy:
        return policy if op is torch.ops.aten.exp.default else CheckpointPolicy.MUST_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, choose)

    def region(x: Tensor) -> Tensor:
        out: Tensor = checkpoint(
            lambda y: torch.exp(torch.sin(y)).cos() * y, x, use_reentrant=False, context_fn=contexts
        )
        return out

    module, step, inputs = traced(region)
    expected = SavePolicy.MUST_SAVE if policy is CheckpointPolicy.MUST_SAVE else SavePolicy.MUST_NOT_SAVE
    assert found(step, "aten.exp").save_policy is expected
    _check_random_plans(module, step, inputs)
    if expected is SavePolicy.MUST_SAVE:
        plan = random_plan(step.captured.graph, Random(0))
        assert plan.steps.count(found(step, "aten.exp").id) == 1


def _check_random_plans(module: nn.Module, step: PlannedStep, inputs: tuple[Tensor]) -> None:
    """Random plans are valid and equal eager."""
    eager = run_step(module, module, inputs, {})
    forward = [op for op in step.captured.graph.ops if op.phase is Phase.FORWARD]
    for seed in range(8):
        plan = random_plan(step.captured.graph, Random(seed))
        assert all(op.may_recompute or plan.steps.count(op.id) == 1 for op in forward)
        step.use(plan)
        assert run_step(module, step.call, inputs, {}).differences(eager) == []
