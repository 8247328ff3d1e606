"""Chunks that Inductor computes in their places: the whole is there from the first of them on, and planned so."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import remat_compiler
from chunks.chunked import Chunked, step
from chunks.layer_programs import WIDTH, FeedForward, Layer, Model
from end_to_end.compiling import compile_with
from instruments.measure import measure_step, train_step
from remat_compiler.capture.graph import CapturedGraph, capture
from remat_compiler.capture.in_place import bytes_taken_over
from remat_compiler.capture.joined import JOINED
from remat_compiler.capture.storages import storage_bytes
from remat_compiler.chunks.layers import chunk_layers
from remat_compiler.ir.graph import Phase, SavePolicy

CHUNKS = 4
ROWS = (4, 128)


class Captured(Chunked):
    """Keeps what is captured of the joint graph in chunks."""

    captured: CapturedGraph

    def _cut(self, joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **keywords: Any) -> Any:
        made = super()._cut(joint, inputs, num_fwd_outputs=num_fwd_outputs, **keywords)
        self.captured = capture(joint, num_fwd_outputs=num_fwd_outputs, static_input_indices=(), fused=True)
        return made


def captured(layer: Layer) -> CapturedGraph:
    """A program whose layers are in chunks."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, backend = Model(layer), Captured(CHUNKS, True, chunk_layers)
    step(torch.compile(model, backend=backend), model, [torch.randn(*ROWS, WIDTH)])
    return backend.captured


def gated() -> FeedForward:
    """A layer whose gradient is a sum."""
    return FeedForward(F.silu, gated=True, bias=False)


def test_each_chunk_takes_over_the_memory_of_the_whole_from_the_one_before() -> None:
    found = captured(gated)
    ops = dict(zip(found.main, found.graph.ops))
    chunks_of: dict[fx.Node, list[fx.Node]] = {}
    for chunk, whole in found.wholes.items():
        chunks_of.setdefault(whole, []).append(chunk)
    # Results of both layers, and the gradients of what these read.
    assert Counter(found.phases[whole] for whole in chunks_of) == {Phase.FORWARD: 2, Phase.BACKWARD: 2}
    taken = bytes_taken_over(found)
    for whole, chunks in chunks_of.items():
        one_by_one = [*sorted(chunks, key=found.main.index), whole]
        size_bytes = storage_bytes(whole)
        assert {found.graph.storages[found.storage[one]].size_bytes for one in one_by_one} == {size_bytes}
        for before, one in pairwise(one_by_one):
            assert found.storage[before] in ops[one].reads
        # Nothing else holds a chunk.
        assert set(ops[whole].reads) == {found.storage[one_by_one[-2]]}
        assert {ops[one].save_policy for one in chunks} == {SavePolicy.MUST_NOT_SAVE}
        assert [taken[ops[one].id] for one in one_by_one] == [0, *(size_bytes for _ in chunks)]


def test_only_what_puts_chunks_together_is_a_whole() -> None:
    torch._dynamo.reset()
    program = torch.nn.Linear(WIDTH, WIDTH)
    backend = Captured(CHUNKS, True, chunk_layers)

    def concatenated(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([program(x), program(x + 1)]).square().mean()

    step(torch.compile(concatenated, backend=backend), program, [torch.randn(64, WIDTH)])
    assert any(node.target is torch.ops.aten.cat.default for node in backend.graph.nodes)
    assert not any(JOINED in node.meta for node in backend.graph.nodes)
    assert not backend.captured.wholes


@pytest.mark.usefixtures("compiles_anew")
def test_emitted_code_peaks_as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remat_compiler.partition.in_chunks.LAYERS", (CHUNKS,))
    torch.manual_seed(0)
    model = compile_with(Model(gated), memory_budget=0.4, inner="inductor", max_slowdown=None)
    measured = measure_step(train_step(model, {"x": torch.randn(4, 512, WIDTH)})).peak_bytes
    (report,) = remat_compiler.reports()
    assert report.chunked
    assert measured == report.peak_bytes
    # Inductor computes a sum in the place of one of its terms: a chunk less.
    assert 0 <= report.estimated_peak_bytes - measured <= 512 * WIDTH * torch.float32.itemsize
