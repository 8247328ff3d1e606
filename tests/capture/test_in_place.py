"""Results that take over the memory of an argument: where Inductor does so for sure, and nowhere else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from costs.captured import captured
from remat_compiler.capture.graph import CapturedGraph
from remat_compiler.capture.in_place import bytes_overwritten, bytes_taken_over
from remat_compiler.ir.graph import Phase, StorageKind

SIZE = 64
_TEMPORARY = StorageKind.TEMPORARY
Step = Callable[[Tensor, Tensor], Tensor]


def through_gelu(x: Tensor, w: Tensor) -> Tensor:
    return (F.gelu(x @ w) @ w).sum()


def read_again(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    return ((torch.sin(y) @ w) * torch.cos(y)).sum()


def summed_beside(x: Tensor, w: Tensor) -> Tensor:
    """The gradient of the scale reads what that of the product reads, in no order of their own."""
    return ((torch.tanh(x @ w) * w[0]) @ w).sum()


def softmax(x: Tensor, w: Tensor) -> Tensor:
    return F.cross_entropy(x @ w, torch.arange(SIZE))


def other_type(x: Tensor, w: Tensor) -> Tensor:
    y = (x @ w).to(torch.float64)
    return (torch.sin(y @ y).to(torch.float32) @ w).sum()


def graph_of(step: Step, *, fused: bool = True) -> CapturedGraph:
    inputs = (torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE, requires_grad=True))
    return captured(step, inputs, fused=fused)


def targets(graph: CapturedGraph) -> list[str]:
    taken_over = bytes_taken_over(graph)
    return [op.target for op in graph.graph.ops if taken_over[op.id]]


@pytest.mark.parametrize("step", [through_gelu, read_again, summed_beside, softmax, other_type])
def test_only_what_ends_in_the_backward_is_taken_over(step: Step) -> None:
    graph = graph_of(step)
    storages, taken_over = graph.graph.storages, bytes_taken_over(graph)
    for op in graph.graph.ops:
        size_bytes = taken_over[op.id]
        if not size_bytes:
            continue
        assert op.phase is Phase.BACKWARD
        assert [storages[s].size_bytes for s in op.writes] == [size_bytes]
        later = {s for other in graph.graph.ops[op.id + 1 :] for s in other.reads}
        ending = [storages[s] for s in op.reads if s not in later and storages[s].size_bytes == size_bytes]
        assert any(s.kind in (StorageKind.ACTIVATION, StorageKind.TEMPORARY) for s in ending)


def test_the_gradient_of_an_activation_is_written_over_its_argument() -> None:
    assert targets(graph_of(through_gelu)) == ["aten.mul.Tensor", "aten.add.Tensor"]


def test_the_gradient_of_a_softmax_is_written_over_the_scores() -> None:
    assert "aten.sub.Tensor" in targets(graph_of(softmax))


def test_what_another_loop_may_read_behind_it_is_not_taken_over() -> None:
    graph = graph_of(summed_beside)
    (tanh,) = (op for op in graph.graph.ops if op.phase is Phase.BACKWARD and op.target == "aten.mul.Tensor")
    (summed,) = (op for op in graph.graph.ops if op.phase is Phase.BACKWARD and op.target == "aten.sum.dim_IntList")
    assert not set(tanh.reads).isdisjoint(summed.reads)
    assert not bytes_taken_over(graph)[tanh.id]


def test_nothing_takes_over_what_was_scattered_into() -> None:
    """Inductor fills such memory and changes it, and gives it to no later loop."""

    def step(x: Tensor, w: Tensor) -> Tensor:
        rows = torch.arange(SIZE) // 2
        return (torch.tanh(((x @ w) * 2.0)[rows]) @ x).sum()

    graph = graph_of(step)
    scattered = {s for op in graph.graph.ops if "index_put" in op.target for s in op.writes}
    assert scattered
    for op, taken_over in zip(graph.graph.ops, bytes_taken_over(graph)):
        assert not taken_over or set(op.reads) - scattered


def test_the_interpreter_takes_nothing_over_by_itself() -> None:
    assert targets(graph_of(through_gelu, fused=False)) == []


def overwriting(step: Step) -> list[str]:
    return [str(node.target) for node in bytes_overwritten(graph_of(step, fused=False))]


def scaled(x: Tensor, w: Tensor) -> Tensor:
    return ((torch.tanh(x @ w) * 3.0) @ w).sum()


def test_what_the_backward_made_and_reads_last_is_overwritten() -> None:
    assert overwriting(through_gelu) == ["aten.gelu_backward.default", "aten.add.Tensor"]
    assert overwriting(scaled) == ["aten.mul.Tensor", "aten.tanh_backward.default", "aten.add.Tensor"]


def test_of_readers_in_no_order_of_their_own_none_overwrites() -> None:
    """The backward may run in any order that its reads allow, and the last of them would differ."""
    graph = graph_of(summed_beside, fused=False)
    counts = Counter(s for op in graph.graph.ops if op.phase is Phase.BACKWARD for s in op.reads)
    (read_twice,) = (s for s, count in counts.items() if count == 2 and graph.graph.storages[s].kind is _TEMPORARY)
    readers = {op.name for op in graph.graph.ops if read_twice in op.reads}
    assert readers.isdisjoint(node.name for node in bytes_overwritten(graph))
    assert overwriting(summed_beside) == ["aten.add.Tensor", "aten.tanh_backward.default", "aten.add.Tensor"]


def test_bytes_that_are_overwritten_are_those_of_the_result() -> None:
    graph = graph_of(through_gelu, fused=False)
    found = bytes_overwritten(graph)
    assert list(found.values()) == [SIZE * SIZE * 4] * 2
    assert bytes_overwritten(graph_of(through_gelu)) == {}


def routed(x: Tensor, w: Tensor) -> Tensor:
    """Two experts, each for rows that depend on data."""
    h, out = x @ w, torch.zeros_like(x)
    for rows in ((h[:, 0] > 0).nonzero().squeeze(1), (h[:, 0] <= 0).nonzero().squeeze(1)):
        out = out.index_add(0, rows, torch.tanh(F.silu(h[rows] @ w) @ w))
    return out.pow(2).mean()


def test_nothing_is_asked_of_sizes_that_depend_on_data() -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        graph = graph_of(routed)
    # Values of equal expressions may share memory; whether others do is not known.
    assert all(size >= 0 for size in bytes_taken_over(graph))
