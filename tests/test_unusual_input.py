"""What a user may bring along, through `torch.compile`: each trains on, or is refused with a clear message."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache as cache_once
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compiler
from remat_compiler import backend, torch_compat
from remat_compiler.backend import remat
from remat_compiler.costs import rates
from remat_compiler.costs.calibration import Calibration, calibrate
from remat_compiler.costs.store import shared_store
from remat_compiler.errors import UnknownName
from remat_compiler.ir.plan import Decision


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test compiles anew and keeps its plans to itself."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("REMAT_CACHE_DIR", str(folder))
    monkeypatch.setattr(rates, "calibrate", lambda device_type: Calibration(idle_rates()))
    start_anew()
    torch.manual_seed(0)
    return folder


@cache_once
def idle_rates() -> dict[str, int]:
    """What an idle device might give: these tests must not depend on how busy this one is."""
    return {name: max(figure, 2**34) for name, figure in calibrate("cpu").figures.items()}


def start_anew() -> None:
    """As a new process would find it."""
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    shared_store.cache_clear()
    backend._warn_beyond_device.cache_clear()


def compiled(module: nn.Module, **options: object) -> Any:
    chosen: dict[str, Any] = {"inner": "eager", "memory_budget": 0.7, "on_infeasible": "min", **options}
    return torch.compile(module, backend=remat, options=chosen)


def outcome(module: nn.Module, call: Callable[..., Any], x: Tensor) -> list[Tensor]:
    """All that a step leaves behind, from the same start: result, gradients, the input, buffers."""
    start = {name: value.clone() for name, value in module.state_dict().items()}
    module.zero_grad(set_to_none=True)
    x = x.clone()
    out = call(x)
    if isinstance(out, Tensor) and out.requires_grad:
        torch.autograd.backward(out)
    left = [p.grad for p in module.parameters() if p.grad is not None]
    found = [t.detach().clone() for t in (*left, x, *module.buffers(), *([] if out is None else [out]))]
    module.load_state_dict(start)
    return found


def check_equal(module: nn.Module, x: Tensor, tolerance: float = 0.0, **options: object) -> None:
    """A step under the options is eager's."""
    expected, found = outcome(module, module, x), outcome(module, compiled(module, **options), x)
    assert len(expected) == len(found) > 0
    for ours, eagers in zip(found, expected):
        torch.testing.assert_close(ours, eagers, rtol=tolerance, atol=tolerance)


class Tower(nn.Module):
    """Two layers with something in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def between(self, y: Tensor) -> Tensor:
        return y.sin()

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.second(self.between(torch.tanh(self.first(x)))))
        return y.square().mean()


class Item(Tower):
    def between(self, y: Tensor) -> Tensor:
        return y.sin() * y.abs().max().item()


class NonZero(Tower):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.first(x))
        where = (y > 0).nonzero()
        return torch.tanh(self.second(y))[where[:, 0], where[:, 1]].square().mean()


class Branches(Tower):
    def between(self, y: Tensor) -> Tensor:
        chosen: Tensor = torch.cond(y.sum() > 0, lambda y: y.sin() * 2, lambda y: y.cos() + 1, (y,))
        return chosen


class Selects(Tower):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.first(x))
        return torch.masked_select(y, y > 0).tanh().sum() + torch.tanh(self.second(y)).square().mean()


CAPTURES = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}


@pytest.mark.parametrize("budget", [0.6, "min"])
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("kind", [Item, NonZero, Branches, Selects])
def test_steps_that_depend_on_data_train(kind: type[nn.Module], captured: bool, budget: float | str) -> None:
    """Whether Dynamo breaks the graph there or not."""
    with torch._dynamo.config.patch(CAPTURES if captured else {}):
        check_equal(kind(), torch.randn(64, 32), memory_budget=budget)
    assert remat_compiler.reports()


@pytest.mark.parametrize("kind", [NonZero, Branches, Selects])
def test_the_report_says_why_a_peak_is_not_known(kind: type[nn.Module]) -> None:
    with torch._dynamo.config.patch(CAPTURES):
        check_equal(kind(), torch.randn(64, 32))
    (report,) = remat_compiler.reports()
    assert report.checked_peak_bytes is None
    assert any("is not known" in note for note in report.notes)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [NonZero, Branches])
def test_inductor_trains_steps_that_depend_on_data(kind: type[nn.Module]) -> None:
    with torch._dynamo.config.patch(CAPTURES):
        check_equal(kind(), torch.randn(64, 32), 1e-5, inner="inductor", memory_budget="min")
    assert remat_compiler.reports()


class Counts(nn.Module):
    """Changes a buffer and its input, and returns nothing or what needs no gradient."""

    def __init__(self, *, returns: bool) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(32))
        self.total: Tensor
        self.returns = returns

    def forward(self, x: Tensor) -> Tensor | None:
        self.total.add_(x.mean(0))
        x.mul_(2)
        return self.total * 3 if self.returns else None


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_a_graph_of_in_place_changes_is_compiled_as_usual(inner: str, returns: bool) -> None:
    check_equal(Counts(returns=returns), torch.randn(64, 32), 1e-6, inner=inner, memory_budget="1MiB")
    assert remat_compiler.reports() == []


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_nothing_is_planned(mode: Callable[[], Any]) -> None:
    with mode():
        check_equal(Tower(), torch.randn(64, 32), memory_budget=1)
    assert remat_compiler.reports() == []


def test_a_planner_that_only_the_environment_misspells_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_PLANNER", "chain_pd")
    with pytest.raises(
        UnknownName, match="unknown planner 'chain_pd' in the variable REMAT_PLANNER; did you mean 'chain_dp'"
    ):
        compiled(Tower())(torch.randn(64, 32))


def test_a_budget_above_the_device_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch_compat, "total_device_bytes", lambda inputs: 2**30)
    with caplog.at_level(logging.WARNING, logger="remat_compiler"):
        for _ in range(2):
            check_equal(Tower(), torch.randn(64, 32), memory_budget="2GiB")
            torch._dynamo.reset()
    warned = [m for m in caplog.messages if "memory_budget=2.0 GiB is more than the 1.0 GiB" in m]
    assert len(warned) == 1
    assert '"auto"' in warned[0]


def test_no_machine_has_the_largest_budget(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="remat_compiler"):
        check_equal(Tower(), torch.randn(64, 32), memory_budget=2**62)
        assert "more than the" in caplog.text
        caplog.clear()
        torch._dynamo.reset()
        check_equal(Tower(), torch.randn(64, 32), memory_budget="1MiB")
        assert caplog.text == ""


def test_a_dump_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with caplog.at_level(logging.WARNING, logger="remat_compiler"):
        check_equal(Tower(), torch.randn(64, 32), dump=blocked)
    assert [m for m in caplog.messages if "is not written" in m and "training goes on" in m]


BROKEN: dict[str, Callable[[str], str]] = {
    "cut short": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "another program's": lambda text: '{"format_version": 1, "version": 1}',
    "of another type": lambda text: "[1, 2]",
    "not text": lambda text: "\x00\x01",
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize(
    ("kind", "says"), [("plans", "made again"), ("[tw]*", "measured again"), ("rates*", "measured again")]
)
def test_broken_stores_are_warned_misses(
    kind: str, says: str, how: str, cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans, times and workspaces of operators, rates of the device, which a busy machine would not keep."""
    monkeypatch.setattr(rates, "LEAST_CREDIBLE", 0.0)
    monkeypatch.setattr(rates, "_busy", set())
    model, x = Tower(), torch.randn(512, 32)
    check_equal(model, x, cost_model="measured")
    files = [path for found in cache.glob(kind) for path in (found.iterdir() if found.is_dir() else [found])]
    assert files
    for path in files:
        path.write_text(BROKEN[how](path.read_text(encoding="utf-8")), encoding="utf-8")
    start_anew()
    with caplog.at_level(logging.WARNING, logger="remat_compiler"):
        check_equal(model, x, cost_model="measured")
    for path in files:
        assert any(path.name in message and says in message for message in caplog.messages)
    (report,) = remat_compiler.reports()
    assert report.checked_peak_bytes is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"budget_bytes":', '"budget_bites":'),
        ('"planner":"auto"', '"planner":3'),
        ('"format":"remat/outcome"', '"format":"other"'),
    ],
)
def test_a_plan_that_is_json_but_no_plan_is_a_warned_miss(
    old: str, new: str, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, x = Tower(), torch.randn(512, 32)
    check_equal(model, x)
    (path,) = (cache / "plans").iterdir()
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    start_anew()
    with caplog.at_level(logging.WARNING, logger="remat_compiler"):
        check_equal(model, x)
    assert any(message.startswith("remat: ignored ") and "made again" in message for message in caplog.messages)
    assert path.read_text(encoding="utf-8") != text.replace(old, new)


def test_a_cache_that_cannot_be_written_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("REMAT_CACHE_DIR", str(blocked))
    with caplog.at_level(logging.WARNING, logger="remat_compiler"):
        check_equal(Tower(), torch.randn(64, 32))
    assert len([message for message in caplog.messages if "cannot be written" in message]) == 1


@torch.library.custom_op("remat_tests::unseen", mutates_args=())
def unseen(x: Tensor) -> Tensor:
    """An operator that nobody has heard of."""
    unseen_runs.append(1)
    return x.sin()


unseen_runs: list[int] = []


@unseen.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


unseen.register_autograd(
    lambda ctx, grad: grad * ctx.saved.cos(), setup_context=lambda ctx, inputs, output: _keep(ctx, inputs)
)


def _keep(ctx: Any, inputs: tuple[Tensor]) -> None:
    ctx.saved = inputs[0]


class Unseen(Tower):
    def between(self, y: Tensor) -> Tensor:
        y = unseen(y)
        return y * y


def test_an_operator_never_seen_runs_once_and_the_report_says_so() -> None:
    model, x = Unseen(), torch.randn(512, 32)
    call = compiled(model, memory_budget="min")
    call(x).backward()
    unseen_runs.clear()
    call(x).backward()
    assert len(unseen_runs) == 1
    (report,) = remat_compiler.reports()
    (decision,) = (d for d in report.decisions if "unseen" in d.made_by.target)
    assert decision.decision is Decision.SAVE
    assert (
        "may not be recomputed: remat_tests.unseen.default is not known to be free of side effects" in decision.reason
    )
    assert any(d.decision is Decision.RECOMPUTE for d in report.decisions)
    check_equal(model, x, memory_budget="min")
