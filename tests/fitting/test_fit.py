"""Steps on GPUs that are not there: budgets kept and predicted to the byte."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import nn

import remat_compiler
from fitting.paper_answers import (
    answers,
    changing,
    checked_with_numbers,
    chosen_by_truth,
    copied,
    foreseen,
    gated,
    in_blocks,
    kernels,
    learned_mask,
    memory,
    moved,
    numbers,
    updates,
    warnings_of,
)
from fitting.paper_models import Language, Vision, Wide, language, untrained, wide_inputs
from remat_compiler.cli.main import main
from remat_compiler.fitting.fit_report import FitPoint
from remat_compiler.fitting.paper_process import call_in_process

INTERPRETED = {"inner": "eager"}
BUDGETS = {"interpreted": (None, 0.7, "min"), "generated": (None, 0.7), "wordy": (None, 0.9)}
INTERPRETED_MODELS, GENERATED = ("language", "vision", "broken", "checkpointed"), ("language", "vision")
ASKED: dict[str, tuple[Any, ...]] = {
    "interpreted": ("eager", "h100", INTERPRETED_MODELS, BUDGETS["interpreted"], None),
    "generated": ("inductor", "rtx4090", GENERATED, BUDGETS["generated"], "bf16"),
    "wordy": ("inductor", "rtx4090", ("wordy", "defaulted"), BUDGETS["wordy"], None),
}
"""Inner compiler, GPU, models, budgets and precision of each kind."""
Points = dict[str, list[FitPoint]]
PointsOf = Callable[[str], list[FitPoint]]


@pytest.fixture(scope="module", autouse=True)
def without_a_cache() -> Iterator[None]:
    """Plans of earlier runs would take the place of those that are looked at; the processes inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REMAT_DISABLE_CACHE", "1")
        yield


@cache
def points_of(kind: str, model: str) -> list[FitPoint]:
    """What each budget comes to; of the models of a kind, only those are compiled that a test asks for."""
    inner, device, models, budgets, autocast = ASKED[kind]
    assert model in models
    found: Points = call_in_process(answers, inner, device, (model,), budgets, autocast)
    return found[model]


@pytest.fixture
def interpreted() -> PointsOf:
    return partial(points_of, "interpreted")


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        *(("interpreted", name) for name in INTERPRETED_MODELS),
        *(("generated", name) for name in GENERATED),
        # The gradient of the logits is to take their place, in one kernel, also where they are recomputed.
        ("wordy", "wordy"),
    ],
)
def test_a_step_takes_what_was_predicted(kind: str, model: str) -> None:
    """To the byte if it is one graph; the peak falls with the budget, and a fraction of the peak is kept."""
    if kind != "interpreted":
        pytest.importorskip("triton")
    points = points_of(kind, model)
    taken = [max(point.forward_bytes, point.backward_bytes) for point in points]
    # No plan goes below the smallest peak, where that was asked for.
    smallest = taken[-1] if BUDGETS[kind][-1] == "min" else 0
    for budget, point, peak in zip(BUDGETS[kind], points, taken):
        assert not point.problem
        if point.planned_bytes is not None:
            # The loss of `vision` is computed behind its graph, from an output of 640 bytes.
            assert abs(point.planned_bytes - peak) <= (1024 if model == "vision" else 0)
        assert (point.planned_bytes is None) == (model == "broken")
        if isinstance(budget, float):
            # A fraction is one of the peak in blocks; one of them may be larger beside the optimizer's.
            in_blocks = [point.in_use_bytes for point in points]
            assert point.in_use_bytes <= max(budget * in_blocks[0], in_blocks[-1] if smallest else 0) + 2**20
    assert taken == sorted(taken, reverse=True)
    assert taken[-1] < taken[0]


def test_operators_without_a_fake_form_are_counted_and_so_is_a_step_of_which_a_part_is_on_the_cpu() -> None:
    pytest.importorskip("triton")
    points: Points = call_in_process(answers, "inductor", "h100", ("float8", "flexible", "mixed"), (None,), None)
    for (point,) in points.values():
        assert not point.problem
        assert point.planned_bytes == max(point.forward_bytes, point.backward_bytes) > 0
    (mixed,) = points["mixed"]
    layer = 64 * 64 * 4 + 64 * 4
    assert mixed.parameter_bytes == layer, "the table does not lie on the GPU"
    assert "aten._foreach_add_.Tensor" not in mixed.unmodelled, "the optimizer's counts lie on the CPU"


def test_code_for_a_gpu_has_a_peak_by_size() -> None:
    pytest.importorskip("triton")
    for has_formula, predicted, taken in call_in_process(foreseen, (64, 96, 80)):
        assert has_formula
        assert predicted == taken > 0


def test_code_is_generated_while_the_gpu_is_the_default_device() -> None:
    pytest.importorskip("triton")
    for point in points_of("wordy", "defaulted"):
        assert not point.problem
        assert point.backward_bytes >= point.gradient_bytes > 0


def test_what_is_there_beside_the_step_is_counted(interpreted: PointsOf) -> None:
    parameters = sum(parameter.numel() * 4 for parameter in Language().parameters())
    for point in interpreted("language"):
        assert point.parameter_bytes == parameters
        # AdamW keeps two averages for each parameter; its counts of steps lie on the CPU.
        assert point.optimizer_bytes == 2 * parameters
        assert point.gradient_bytes >= parameters
        # It makes one more tensor for each parameter, beside the gradients.
        assert parameters <= point.update_bytes <= 2 * point.gradient_bytes
        assert point.resident_bytes + point.in_use_bytes <= point.allocated_bytes <= point.peak_bytes
        assert point.peak_bytes <= point.reserved_bytes + 2**20
    statistics = sum(buffer.numel() * buffer.element_size() for buffer in Vision().buffers())
    weights = sum(parameter.numel() * 4 for parameter in Vision().parameters())
    assert {point.parameter_bytes for point in interpreted("vision")} == {statistics + weights}


@pytest.mark.parametrize("model", INTERPRETED_MODELS)
def test_recomputation_is_priced_by_the_data_sheet(model: str, interpreted: PointsOf) -> None:
    """Next to nothing is recomputed without a budget, by graphs either that first had a part of it."""
    native, *_, smallest = interpreted(model)
    assert native.added_ns <= (native.step_ns / 100 if model == "broken" else 0)
    assert 0 < smallest.added_ns < smallest.step_ns


def test_attention_takes_the_kernel_of_the_gpu() -> None:
    found = call_in_process(kernels)
    half, single = "torch.bfloat16", "torch.float32"
    assert {key: {name.removesuffix("_backward") for name in names} for key, names in found.items()} == {
        ("h100", half): {"cudnn_attention"},
        ("h100", single): {"efficient_attention"},
        ("a100", half): {"flash_attention"},
        ("a100", single): {"efficient_attention"},
        ("t4", half): {"efficient_attention"},
        ("t4", single): {"efficient_attention"},
    }
    assert all(any(name.endswith("_backward") for name in names) for names in found.values())


def test_attention_with_a_learned_mask_is_efficient() -> None:
    """cuDNN has no gradient for it, and the kernel reads rows that begin at multiples of 8."""
    names, strides = call_in_process(learned_mask)
    assert names == ["efficient_attention", "efficient_attention_backward"]
    assert strides == [3 * 49 * 56, 49 * 56, 56, 1]


def test_a_mask_of_truth_values_is_one_of_numbers_for_every_kernel() -> None:
    """An H100 had 8 MiB more for GPT-2's than a mask of truth values takes."""
    assert call_in_process(chosen_by_truth) == {
        device: [f"{kernel}{of} torch.bfloat16" for of in ("", "_backward")]
        for device, kernel in (("h100", "cudnn_attention"), ("t4", "efficient_attention"))
    }


def test_gates_have_one_kernel_in_the_backward() -> None:
    """As on a GPU, though a build of torch without CUDA has none, and would write them out in others."""
    names = call_in_process(gated)
    assert {"silu_backward", "mish_backward"} <= set(names)
    assert not {"sigmoid", "tanh", "mul"} & set(names)


def test_optimizers_of_every_kind_have_a_step() -> None:
    found = call_in_process(updates)
    assert {name: state for name, (state, _) in found.items()} == {
        # A mean for each row, for each column, and for each element of the bias.
        "by values": 4 * (8 + 8 + 8),
        # Two averages; counts of steps lie on the GPU.
        "compiled": 2 * 4 * (64 + 8) + 2 * 4,
        "fused": 2 * 4 * (64 + 8) + 2 * 4,
    }
    # What is compiled or fused makes nothing beside the gradients.
    assert found["compiled"][1] == found["fused"][1] == 2 * 512
    assert found["by values"][1] > 2 * 512


def test_a_budget_holds_for_every_batch_on_paper() -> None:
    """The first two are compiled for themselves, later ones by a formula of the peak, or by another variant."""
    batches = (8, 16, 24, 32, 48, 64)
    limit, taken = call_in_process(changing, batches, 0.7)
    assert max(taken) <= limit
    a_sample = [peak / batch for peak, batch in zip(taken, batches)]
    # Small batches recompute nothing, large ones do.
    assert max(a_sample[:4]) < 1.01 * min(a_sample[:4])
    assert max(a_sample[4:]) < 0.7 * min(a_sample[:4])


def test_a_step_on_paper_moves_values() -> None:
    """There is no memory to pin, and nothing is copied; the plan and its peak are those of a GPU."""
    alone, moved = (
        remat_compiler.fit(Wide, wide_inputs, device="h100", budget=0.5, options={**INTERPRETED, **room}).points[0]
        for room in ({}, {"offload_budget": "4GiB"})
    )
    assert alone.planned_bytes is not None
    assert max(moved.forward_bytes, moved.backward_bytes) == moved.planned_bytes
    assert 0 < moved.added_ns < alone.added_ns


def test_memory_of_tensors_is_told_apart() -> None:
    """Storages on paper have no data, and no address of it."""
    assert call_in_process(memory) == (48, True, False)


def test_the_checked_peak_counts_whole_blocks() -> None:
    """As `max_memory_allocated` does: each value of 11.5 MiB takes half a MiB more, if segments don't expand."""
    for peak_bytes, requested_bytes in call_in_process(in_blocks, False):
        assert peak_bytes - requested_bytes in {2**19, 2 * 2**19, 3 * 2**19}
    for peak_bytes, requested_bytes in call_in_process(in_blocks, True):
        assert peak_bytes == requested_bytes > 0


def test_memory_outside_the_plan_is_told_of_on_paper() -> None:
    told = call_in_process(warnings_of, untrained, 0.8)
    assert any("graphs without gradients make 2.4 MiB in front of the planned graphs" in line for line in told)


@pytest.mark.parametrize("numbers", [(0.5, 0.25), (torch.tensor(0.5),)], ids=["a number that changes", "on the CPU"])
def test_numbers_that_kernels_are_given_leave_the_peak_known(numbers: tuple[Any, ...]) -> None:
    pytest.importorskip("triton")
    assert call_in_process(checked_with_numbers, numbers) == [True] * len(numbers)


def test_modules_are_moved_and_cast_as_on_a_gpu() -> None:
    found = call_in_process(moved)
    cuda, single = "cuda:0", "torch.float32"
    for made_on in ("cpu", "cuda"):
        assert found[f"{made_on}: to cuda"] == (single, cuda, True)
        assert found[f"{made_on}: cuda"] == (single, cuda, True)
        assert found[f"{made_on}: half"][0] == "torch.float16"
        assert found[f"{made_on}: to both"] == ("torch.bfloat16", cuda, True)
        assert found[f"{made_on}: to the CPU"] == (single, "cpu", True)


def test_a_tensor_that_is_there_is_not_copied() -> None:
    assert call_in_process(copied) == [False, False, True, True]


def test_models_are_made_by_numbers_that_nobody_computes() -> None:
    assert call_in_process(numbers) == {
        "each": [0.0, 0.5, 1.0],
        "list": [0, 1, 2],
        "list on the GPU": [0, 1, 2],
        "computed": 9.0,
        "compared": False,
        "tensor": 7,
        "random": None,
        "changed": None,
        "changed by a view": None,
        "uninitialised": None,
        "large": None,
        "truncated": (3, 3),
    }


class Scaled(nn.Module):
    """The gradient of its input is all that its backward makes."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin().sum() * self.scale


def learned_inputs(batch: int) -> torch.Tensor:
    return torch.zeros(batch, 8, requires_grad=True)


def test_gradients_of_inputs_do_not_add_up() -> None:
    """The steps that are counted are given the same tensors, where those of a program are given others."""
    pytest.importorskip("triton")
    (point,) = remat_compiler.fit(Scaled, learned_inputs, device="t4", batches=[4096]).points
    assert point.planned_bytes == point.budgeted_bytes


def test_a_budget_that_cannot_be_kept_is_said_of_its_batch() -> None:
    report = remat_compiler.fit(
        Separated(), Separated.inputs, device="a100", budget="2MiB", batches=[1, 64], options=INTERPRETED
    )
    small, large = report.points
    assert report.fits(small)
    assert small.backward_bytes <= 2 * 2**20
    assert not report.fits(large)
    assert "smallest reachable peak" in large.problem
    text = str(report)
    assert "memory_budget 2MiB" in text
    assert "smallest reachable peak" in text
    record = json.loads(report.to_json())
    assert [point["fits"] for point in record["points"]] == [True, False]


class Separated:
    """A model and its inputs, made apart."""

    def __call__(self) -> nn.Module:
        return language(1)[0]

    @staticmethod
    def inputs(batch: int) -> Any:
        return language(batch)[1]


@pytest.mark.usefixtures("new_interpreter")
def test_the_command_answers(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "import torch\n"
        "from torch import nn\n"
        "def make(batch):\n"
        "    return nn.Linear(64, 64), torch.zeros(batch, 64), lambda y: y.square().mean()\n"
    )
    arguments = ["fit", f"{file}:make", "--device", "T4", "--inner", "eager", "--batch", "16,32"]
    assert main([*arguments, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [point["batch"] for point in record["points"]] == [16, 32]
    assert record["product"] == "Tesla T4"
