"""What the recorder hears: fresh compiles and hits of both caches, forward and backward apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.output_code import CompiledFxGraph
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from dry_run.steps import DryRunBackend, Mlp, train_step
from remat_compiler import torch_compat
from remat_compiler.dry_run.emitted_wrapper import EmittedGraph, GraphRecorder, make_twin
from remat_compiler.dry_run.storage_tracker import StorageTracker


def compiled_once() -> DryRunBackend:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, backend = Mlp(), DryRunBackend("inductor")
    train_step(torch.compile(model, backend=backend, dynamic=False), model, [torch.randn(32, 64)])
    return backend


@pytest.mark.parametrize("autograd_cache", [True, False])
def test_cache_hits_are_heard_and_predict_the_same(
    autograd_cache: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    counter = ("aot_autograd", "autograd_cache_hit") if autograd_cache else ("inductor", "fxgraph_cache_hit")
    with torch._functorch.config.patch(enable_autograd_cache=autograd_cache):
        fresh = compiled_once()
        before = counters[counter[0]][counter[1]]
        cached = compiled_once()
    assert counters[counter[0]][counter[1]] > before, "the second compile was to hit the cache"
    assert len(cached.recorders[0].forward) == len(cached.recorders[0].backward) == 1
    assert cached.predictions[0].peak_bytes == fresh.predictions[0].peak_bytes > 0


def test_torch_is_restored_even_after_an_error() -> None:
    original = CompiledFxGraph.post_compile
    lazy = torch._functorch.config.force_non_lazy_backward_lowering
    with pytest.raises(ZeroDivisionError), GraphRecorder():
        raise ZeroDivisionError
    assert CompiledFxGraph.post_compile is original
    assert torch._functorch.config.force_non_lazy_backward_lowering == lazy


def test_recorders_nest() -> None:
    original = CompiledFxGraph.post_compile
    with GraphRecorder() as outer:
        inner = compiled_once().recorders[0]
    assert [graph.is_backward for graph in inner.graphs] == [False, True]
    assert [graph.owner for graph in outer.graphs] == [graph.owner for graph in inner.graphs]
    assert CompiledFxGraph.post_compile is original


def test_a_recorder_that_exits_first_leaves_the_other_listening() -> None:
    first, second = GraphRecorder(), GraphRecorder()
    original = CompiledFxGraph.post_compile
    first.__enter__()
    second.__enter__()
    second.__exit__(None, None, None)
    compiled_once()
    first.__exit__(None, None, None)
    assert len(first.graphs) == 2
    assert second.graphs == []
    assert CompiledFxGraph.post_compile is original


def empty_strided_p2p(*_: Any, **__: Any) -> torch.Tensor:
    raise AssertionError("symmetric memory is allocated on all ranks")


def communicating(arguments: list[Any]) -> tuple[torch.Tensor]:
    """As Inductor emits a collective on symmetric memory."""
    arguments.clear()
    return (empty_strided_p2p((4, 4), (4, 1), torch.float32, torch.device("cpu"), group_name="0", alloc_id=7),)


def test_symmetric_memory_is_not_allocated_and_does_not_count() -> None:
    mode = torch_compat.FakeTensorMode()
    with mode, StorageTracker(mode, "cpu", ()) as tracker:
        (made,) = make_twin(EmittedGraph(None, communicating, (), False, ""), tracker)([])
        copy = made.clone()
    assert (made.shape, made.dtype) == ((4, 4), torch.float32)
    assert isinstance(made, torch_compat.FakeTensor)
    assert tracker.live_bytes == copy.untyped_storage().nbytes()


def copy_if_misaligned(tensor: torch.Tensor) -> torch.Tensor:
    raise AssertionError("torch reads where the tensor lies in memory")


def aligning(arguments: list[Any]) -> tuple[torch.Tensor]:
    """As Inductor emits what reads an input on a GPU (torch 2.13 and later)."""
    (x,) = arguments
    arguments.clear()
    return (copy_if_misaligned(x),)


@pytest.mark.parametrize("begin", [0, 1, 4])
def test_an_input_at_an_odd_place_is_copied_and_counts(begin: int) -> None:
    mode = torch_compat.FakeTensorMode()
    with mode, StorageTracker(mode, "cpu", ()) as tracker:
        held = torch.empty(104)
        x = held[begin : begin + 100]
        before = tracker.live_bytes
        (read,) = make_twin(EmittedGraph(None, aligning, (), False, ""), tracker)([x])
        assert (read is x) is (begin != 1)
        assert tracker.live_bytes - before == (400 if begin == 1 else 0)


def test_an_input_of_symbolic_size_is_at_its_place() -> None:
    """Its formula would else be unknown for code of a GPU."""
    mode = torch_compat.FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.empty(12, 4), symbolic_context=StatelessSymbolicContext([DimDynamic.DYNAMIC] * 2))
    with mode, StorageTracker(mode, "cpu", (), symbolic=True) as tracker:
        (read,) = make_twin(EmittedGraph(None, aligning, (), False, ""), tracker)([x])
    assert isinstance(x.shape[0], torch.SymInt)
    assert read is x
