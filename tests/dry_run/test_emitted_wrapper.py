"""What the recorder hears: fresh compiles and hits of both caches, forward and backward apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.output_code import CompiledFxGraph

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
