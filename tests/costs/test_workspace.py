"""Workspace of operators: measured once, remembered, kept on disk, broken files survived."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from dry_run.steps import peak_of
from remat_compiler import torch_compat
from remat_compiler.costs import store, workspace
from remat_compiler.costs.any_values import is_measurable
from remat_compiler.costs.op_call import OpCall
from remat_compiler.costs.workspace import WorkspaceTable, measure_workspace, workspace_of
from remat_compiler.torch_compat import FakeTensorMode

aten = torch.ops.aten
CONVOLUTION = (None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1)


def convolution_arguments(device: str = "cpu") -> tuple[Any, ...]:
    return (torch.empty(2, 3, 32, 32, device=device), torch.empty(8, 3, 3, 3, device=device), *CONVOLUTION)


def test_a_loop_may_be_run_again_with_the_same_rounds() -> None:
    """As on a GPU, where the first run is not measured."""
    call = OpCall(torch.ops.higher_order.while_loop, (), {}, "")
    ((goes_on, *_),) = workspace._arguments_of_paths(call, (None,))
    assert [bool(goes_on()) for _ in range(6)] == [True, True, False] * 2


def test_workspace_is_what_the_allocator_sees_beyond_the_results() -> None:
    x, weight, *rest = convolution_arguments()
    results: list[torch.Tensor] = []
    peak = peak_of(lambda: results.append(aten.convolution.default(x, weight, *rest)))
    with FakeTensorMode():
        fake = convolution_arguments()
    assert WorkspaceTable().probe(aten.convolution.default, fake, {}) == peak - results[0].untyped_storage().nbytes()


def test_on_paper_no_operator_is_tried_whose_results_would_fill_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_compat, "is_on_paper", lambda: True)
    call = OpCall.any(aten.mm.default, (torch.empty(1_000, 1), torch.empty(1, 1_000)), {})
    assert call is not None
    for left_bytes, tried in ((12_000_000, False), (20_000_000, True)):
        monkeypatch.setattr(workspace, "available_bytes", lambda left_bytes=left_bytes: left_bytes)
        assert (measure_workspace(call) is not None) == tried


@pytest.mark.parametrize(
    ("func", "arguments", "expected"),
    [
        (aten.mm.default, (torch.empty(8, 8), torch.empty(8, 8)), 0),
        (aten.add.Tensor, (torch.empty(8, 8), torch.empty(8, 8)), 0),
        (aten.view.default, (torch.empty(8, 8), [64]), 0),
        (aten.clone.default, (torch.empty(192, 32),), 0),
        (aten._to_copy.default, (torch.empty(192, 32).t(),), 0),
        # The bfloat16 operand is converted to float32 first.
        (aten.add.Tensor, (torch.empty(8, 8), torch.empty(8, 8, dtype=torch.bfloat16)), 256),
        # Two to the power of the second operand.
        (aten.ldexp.Tensor, (torch.empty(8, 8), torch.empty(8, 8)), 256),
        # A number becomes a tensor of its own type, 8 bytes or 16 of a complex one, and one of the result's.
        (aten.mul.Tensor, (torch.empty(8, 8), 2.0), 12),
        (aten.mul.Tensor, (torch.empty(8, 8, dtype=torch.cfloat), 1j), 24),
        # A product of conjugates is one of copies, but for those that the library conjugates as it reads.
        (aten.mm.default, (torch.empty(8, 8, dtype=torch.cfloat), torch.empty(8, 8, dtype=torch.cfloat).conj()), 512),
        (aten.add.Tensor, (torch.empty(8, 8), torch.empty(8, 8, dtype=torch.cfloat).conj().imag), 256),
        # A mask may choose everything, which takes an index for each element and dimension.
        (aten.index_put.default, (torch.empty(8, 8), [torch.empty(8, 8, dtype=torch.bool)], torch.empty(64)), 1024),
        (aten.masked_scatter.default, (torch.empty(8, 8), torch.empty(8, 8, dtype=torch.bool), torch.empty(3)), 0),
        # Of as many as there are gradients to give, by a prefix sum over all.
        (aten.masked_scatter_backward.default, (torch.empty(8, 8), torch.ones(8, 1).bool(), [3, 8]), 1024),
        # Rows are counted from one.
        (aten.lu_unpack.default, (torch.empty(8, 8), torch.empty(8, dtype=torch.int32)), 64),
    ],
)
def test_known_workspaces(func: Any, arguments: tuple[Any, ...], expected: int) -> None:
    assert WorkspaceTable().probe(func, arguments, {}) == expected


def test_a_size_among_the_operands_counts_as_a_number() -> None:
    size = ShapeEnv().create_unbacked_symint()
    call = OpCall.of(aten.mul.Tensor, (torch.empty(8, 8), size), {}, None)
    assert call is not None
    assert measure_workspace(call) == 12


@pytest.mark.parametrize(("rows", "expected"), [(192, 14_400), (32, 0)])
def test_a_matrix_is_transposed_through_a_buffer(rows: int, expected: int) -> None:
    kwargs = {"memory_format": torch.contiguous_format}
    assert WorkspaceTable().probe(aten.clone.default, (torch.empty(rows, 32).t(),), kwargs) == expected


def test_autocast_around_the_call_does_not_count() -> None:
    """It is on where a model is called under it, and would convert the operands."""
    call = OpCall.any(aten.mm.default, (torch.empty(64, 64), torch.empty(64, 64)), {})
    assert call is not None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert measure_workspace(call) == 0
        assert torch.is_autocast_enabled("cpu")


def test_indices_are_valid_and_the_random_state_is_put_back() -> None:
    state = torch.get_rng_state()
    assert (
        WorkspaceTable().probe(aten.embedding.default, (torch.empty(10, 4), torch.empty(3, dtype=torch.long)), {}) == 0
    )
    assert WorkspaceTable().probe(aten.bernoulli.default, (torch.empty(64, 64),), {}) >= 0
    assert torch.equal(torch.get_rng_state(), state)


def test_what_cannot_run_is_logged_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    call = OpCall.of(aten.mm.default, (torch.empty(2, 3), torch.empty(2, 3)), {}, None)
    assert call is not None
    with caplog.at_level(logging.WARNING):
        table = WorkspaceTable()
        assert table.resolve([call]) == table.resolve([call]) == {}
    assert caplog.text.count("the workspace of aten.mm.default") == 1, "once is enough"


def test_a_second_table_reads_what_the_first_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = WorkspaceTable(tmp_path).probe(aten.convolution.default, convolution_arguments(), {})
    assert first > 0
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]

    def never(call: OpCall) -> int:
        raise AssertionError(f"measured {call.key} again")

    monkeypatch.setattr(workspace, "measure_workspace", never)
    assert WorkspaceTable(tmp_path).probe(aten.convolution.default, convolution_arguments(), {}) == first


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"version": 0, "most_workspace_bytes": {}}',
        '{"version": 1, "most_workspace_bytes": {"a": -1}}',
        "\x00",
    ],
)
def test_a_broken_file_is_a_warned_miss(content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = WorkspaceTable(tmp_path).probe(aten.convolution.default, convolution_arguments(), {})
    (path,) = tmp_path.iterdir()
    path.write_text(content, encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert WorkspaceTable(tmp_path).probe(aten.convolution.default, convolution_arguments(), {}) == expected
    assert "measured again" in caplog.text
    assert json.loads(path.read_text(encoding="utf-8"))["version"] == store.FORMAT_VERSION


def test_a_folder_that_cannot_be_written_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert WorkspaceTable(blocked).probe(aten.convolution.default, convolution_arguments(), {}) > 0
    assert "cannot be written" in caplog.text


def test_another_thread_count_is_another_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    WorkspaceTable(tmp_path).probe(aten.convolution.default, convolution_arguments(), {})
    monkeypatch.setattr(store, "environment", lambda: ("another",))
    WorkspaceTable(tmp_path).probe(aten.convolution.default, convolution_arguments(), {})
    assert len(list(tmp_path.iterdir())) == 2


def test_blocks_of_a_gpu_are_counted_without_a_look_at_its_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """The maximum is the user's, and there is no measuring by it without a reset."""
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda *_: pytest.fail("the user's maximum is lost"))
    calls: list[None] = []

    def deltas(run: Callable[[], object], device_type: str) -> tuple[list[int], object]:
        assert device_type == "cuda"
        # Two blocks inside, one after the other, beside the result.
        return [4096, 1024, -1024, 2048, -2048], run()

    monkeypatch.setattr(torch_compat, "memory_deltas", deltas)
    assert workspace_of(lambda: calls.append(None), "cuda") == 2048
    # The first call is that of libraries that set themselves up.
    assert len(calls) == 2


def test_memory_of_a_cpu_is_none_of_a_gpu() -> None:
    found, _ = torch_compat.memory_deltas(lambda: torch.empty(100), "cuda")
    assert found == []


def test_random_operators_of_checkpoints_on_a_gpu_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    func = torch._prims.rng_prims.graphsafe_run_with_rng_state
    own = torch.Generator()
    call = OpCall.any(func, (aten.native_dropout.default, torch.empty(8, 8), 0.5, True), {"rng_state": own})
    assert call is not None
    assert is_measurable(call)
    monkeypatch.setattr(torch.cuda, "default_generators", (own,))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    _, kwargs = call.real_arguments()
    assert isinstance(kwargs["rng_state"], torch.Generator)
    assert kwargs["rng_state"] is not own


def test_a_running_profiler_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    table = WorkspaceTable()
    with caplog.at_level(logging.WARNING):
        peak_of(lambda: table.probe(aten.convolution.default, convolution_arguments(), {}))
    assert "while a profiler runs" in caplog.text
    assert table.known == {}


def test_calls_differ_by_what_decides_their_memory() -> None:
    square = torch.empty(8, 8)
    call = OpCall.of(aten.sort.default, (square, 1), {}, None)
    transposed = OpCall.of(aten.sort.default, (square.t(), 1), {}, None)
    assert call is not None
    assert transposed is not None
    assert call.key != transposed.key
    assert measure_workspace(call) is not None


def test_what_cudnns_recurrent_layers_keep_is_told_to_be_unknown(caplog: pytest.LogCaptureFixture) -> None:
    """They return what their backward reads in a reserve, which has no bytes on fake tensors."""
    size = 16
    with FakeTensorMode():
        x, hidden = torch.empty(8, 4, size, device="cuda"), torch.empty(1, 4, size, device="cuda")
        weights = [torch.empty(4 * size, size, device="cuda") for _ in range(2)]
        arguments = (x, weights, 2, None, hidden, hidden, 2, size, 0, 1, False, 0.0, True, False, [], None)
        assert WorkspaceTable().probe(aten._cudnn_rnn.default, arguments, {}) == 0
    assert "the memory that aten._cudnn_rnn.default takes inside, beside its results, is not known" in caplog.text
