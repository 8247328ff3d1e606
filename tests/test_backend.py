"""What a user meets at the entry point: good options, bad options, graphs with nothing to plan."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor import config as inductor_config
from torch.torch_version import TorchVersion

import remat_compiler
from remat_compiler import backend, torch_compat
from remat_compiler.backend import remat
from remat_compiler.errors import InfeasibleBudget, OptionError, UnknownName
from remat_compiler.ir.plan import Decision

ROOT = Path(__file__).resolve().parents[1]


pytestmark = pytest.mark.usefixtures("compiles_anew")


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.Tanh())]
    return nn.Sequential(*layers)


def compiled(module: nn.Module, **options: object) -> nn.Module:
    return torch.compile(module, backend=remat, options={"inner": "eager", **options}, dynamic=False)


def gradients(module: nn.Module, call: object, x: torch.Tensor) -> list[torch.Tensor]:
    module.zero_grad(set_to_none=True)
    call(x).square().sum().backward()  # type: ignore[operator]
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize(("version", "warnings"), [("2.16.0", 1), (torch.__version__, 0)])
def test_a_torch_that_nobody_tested_is_warned_of_once(
    version: str, warnings: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    backend._warn_untested.cache_clear()
    caplog.set_level(logging.WARNING, logger="remat_compiler")
    for width in (4, 8):
        compiled(model())(torch.randn(width, 32))
    said = [message for message in caplog.messages if "tested are 2.11 to 2.15" in message]
    assert len(said) == warnings
    assert all(version in message and "remat doctor" in message for message in said)
    backend._warn_untested.cache_clear()


@pytest.mark.parametrize("bad", [0, -1, "6 GB of", float("nan"), 1.5, "", True, "-3"])
def test_a_malformed_budget_is_named(bad: object) -> None:
    with pytest.raises(OptionError, match="memory_budget"):
        compiled(model(), memory_budget=bad)(torch.randn(4, 32))


@pytest.mark.parametrize(
    ("options", "error", "hint"),
    [
        ({"memory_bugdet": 1}, OptionError, "memory_budget"),
        ({"planner": "chain_pd"}, UnknownName, "chain_dp"),
        ({"inner": "inductr"}, OptionError, "inductor"),
        ({"max_slowdown": 0.5}, OptionError, "max_slowdown"),
        (
            {"time_limit": float("nan")},
            OptionError,
            "time_limit must be a finite number of at least 0, or None, got nan",
        ),
        ({"time_limit": -2.0}, OptionError, "time_limit must be a finite number of at least 0, or None, got -2.0"),
        ({"planner": ""}, OptionError, "planner must be the name of a planner, got ''"),
        ({"planner": "gurobi"}, UnknownName, "unknown planner 'gurobi' .allowed: auto, capuchin, chain_dp"),
        (
            {"planner": "ilp", "solver": "gurobi"},
            OptionError,
            "unknown option 'solver' .allowed: memory_budget, planner",
        ),
    ],
)
def test_a_slip_of_the_pen_gets_the_near_match(options: dict[str, object], error: type[Exception], hint: str) -> None:
    with pytest.raises(error, match=hint):
        compiled(model(), **options)(torch.randn(4, 32))


def test_an_unknown_planner_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_PLANNER", "ipl")
    with pytest.raises(UnknownName, match="unknown planner 'ipl' in the variable REMAT_PLANNER; did you mean 'ilp'"):
        compiled(model(), memory_budget=0.8)(torch.randn(4, 32))


@pytest.mark.parametrize(("planner", "budget"), [("chain_dp", "1 KiB"), ("ilp", 1e-6), ("save_all", 1)])
def test_below_the_floor_every_planner_is_refused_with_its_smallest_peak(planner: str, budget: object) -> None:
    step, x = compiled(model(), memory_budget=budget, planner=planner), torch.randn(64, 32)
    if isinstance(budget, float):
        # What a fraction is of is known once the first step tells whether the graph is alone in it.
        step(x).sum().backward()
    with pytest.raises(
        InfeasibleBudget, match=r"no plan fits memory_budget=.*: the smallest .* is \d+ bytes"
    ) as refused:
        step(x)
    assert f"memory_budget={budget!r} " in str(refused.value)
    assert f"by planner {planner!r} " in str(refused.value)


@pytest.mark.parametrize("time_limit", [0, 1e-9])
@pytest.mark.parametrize("planner", ["auto", "ilp"])
def test_hardly_any_time_to_plan_still_keeps_the_budget(planner: str, time_limit: float) -> None:
    compiled(model(), memory_budget=0.7, time_limit=time_limit, planner=planner)(torch.randn(4096, 32)).sum().backward()
    (report,) = remat_compiler.reports()
    assert report.budget_bytes is not None
    assert report.checked_peak_bytes is not None
    assert report.checked_peak_bytes <= report.budget_bytes < report.peak_before_bytes


def test_an_impossible_budget_names_the_smallest_peak_and_what_forces_it() -> None:
    with pytest.raises(InfeasibleBudget) as refused:
        compiled(model(), memory_budget=100)(torch.randn(64, 32))
    assert refused.value.smallest_peak_bytes > 100
    assert refused.value.forced_by
    # Not a line of what was emitted; the containers of torch have none of the user's.
    assert refused.value.source.removeprefix("module ") in dict(model().named_modules())


@pytest.mark.parametrize(("inner", "max_slowdown"), [("eager", 2.0), ("eager", None), ("inductor", 2.0)])
def test_a_refusal_names_what_min_reaches_and_that_is_kept_as_a_budget(inner: str, max_slowdown: float | None) -> None:
    """The same bytes in all three, as checked on what was emitted."""
    options: dict[str, object] = {"inner": inner, "max_slowdown": max_slowdown}

    def checked_peak(budget: object) -> int:
        torch._dynamo.reset()
        compiled(model(), memory_budget=budget, **options)(torch.randn(512, 32)).sum().backward()
        report = remat_compiler.reports()[-1]
        assert report.checked_peak_bytes is not None
        return report.checked_peak_bytes

    smallest = checked_peak("min")
    torch._dynamo.reset()
    # Just below, where the planner finds plans that miss the budget by little, and far below.
    for budget in (smallest - 1, 100):
        with pytest.raises(InfeasibleBudget) as refused:
            compiled(model(), memory_budget=budget, **options)(torch.randn(512, 32))
        assert refused.value.smallest_peak_bytes == smallest
    assert checked_peak(smallest) <= smallest


def test_on_request_the_smallest_peak_is_taken_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    module, x = model(), torch.randn(64, 32)
    expected = gradients(module, module, x)
    with caplog.at_level(logging.WARNING, logger="remat_compiler"):
        call = compiled(module, memory_budget=100, on_infeasible="min")
        found = gradients(module, call, x)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert any("smallest peak" in record.message for record in caplog.records)


def test_a_budget_is_kept_and_the_gradients_are_eagers() -> None:
    module, x = model(), torch.randn(4096, 32)
    expected = gradients(module, module, x)
    found = gradients(module, compiled(module, memory_budget=0.8), x)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    (report,) = remat_compiler.reports()
    assert report.budget_bytes is not None
    assert report.checked_peak_bytes is not None
    assert report.checked_peak_bytes <= report.budget_bytes < report.peak_before_bytes
    assert any(d.decision is Decision.RECOMPUTE for d in report.decisions)


def test_where_everything_fits_the_graphs_are_torchs_own(tmp_path: Path) -> None:
    module = model()
    compiled(module, memory_budget="1GiB", dump=tmp_path)(torch.randn(64, 32)).sum().backward()
    (report,) = remat_compiler.reports()
    assert report.planner == "min_cut"
    assert report.added_ns == 0
    assert (tmp_path / report.graph_name / "forward.py").is_file()


def test_without_gradients_nothing_is_planned() -> None:
    module, x = model(), torch.randn(4, 32)
    with torch.no_grad():
        assert torch.equal(compiled(module, memory_budget="1MiB")(x), module(x))
    torch._dynamo.reset()
    frozen = model().requires_grad_(False)
    assert torch.equal(compiled(frozen, memory_budget="1MiB")(x), frozen(x))
    assert remat_compiler.reports() == []


@pytest.mark.parametrize(
    "given",
    [
        {"max_slowdown": 1e15},
        {"max_slowdown": 1e300},
        {"max_slowdown": 10**400},
        {"time_limit": 1e308},
        {"memory_budget": 2**63 - 1},
        {"memory_budget": 1e-300, "on_infeasible": "min"},
    ],
)
def test_numbers_at_the_end_of_their_range_train(given: dict[str, object]) -> None:
    module, x = model(), torch.randn(64, 32)
    expected = gradients(module, module, x)
    found = gradients(module, compiled(module, **{"memory_budget": 0.8, **given}), x)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"mode": "max-autotune"}, "mode='max-autotune' is not possible with remat: it sets 'triton.cudagraphs'"),
        ({"mode": "reduce-overhead"}, "allowed: default, max-autotune-no-cudagraphs"),
        ({"mode": "max-autotone"}, "unknown mode 'max-autotone'; did you mean 'max-autotune'"),
        ({"mode": "max-autotune-no-cudagraphs", "options": {"inner": "eager"}}, "inner is 'eager'; leave it out"),
        ({"options": {"triton.cudagraphs": True}}, "CUDA graphs hold memory in pools of their own"),
        ({"options": {"allow_buffer_reuse": True}}, "remat decides it"),
        ({"options": {"max_autotune": 1}}, "must be of type bool, got 1"),
        ({"options": {"max_autotune": True, "inner": "eager"}}, "option 'max_autotune' is one of Inductor's"),
        ({"options": {"max_autotone": True}}, "unknown option 'max_autotone'"),
        ({"options": {"post_grad_custom_post_pass": lambda graph: None}}, "made of numbers and strings"),
        ({"optoins": {"memory_budget": 1}}, "unknown argument 'optoins' of the backend remat; did you mean 'options'"),
    ],
)
def test_a_mode_or_setting_that_is_not_passed_on_is_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError) as refused:
        torch.compile(model(), backend=partial(remat, **arguments))(torch.randn(4, 32))
    assert says in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ({"mode": "max-autotune-no-cudagraphs"}, {"max_autotune": True, "coordinate_descent_tuning": True}),
        (
            {"options": {"coordinate-descent-tuning": True, "triton.cudagraphs": False}},
            {"coordinate_descent_tuning": True},
        ),
        (
            {"mode": "max-autotune-no-cudagraphs", "options": {"max_autotune": False}},
            {"max_autotune": False, "coordinate_descent_tuning": True},
        ),
    ],
)
def test_a_mode_and_settings_hold_while_inductor_compiles_and_no_longer(
    arguments: dict[str, Any], settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, object]] = []
    original = torch_compat.compile_with_inductor

    def compile_with_inductor(*given: Any) -> Any:
        seen.append({name: getattr(inductor_config, name) for name in settings})
        return original(*given)

    monkeypatch.setattr(torch_compat, "compile_with_inductor", compile_with_inductor)
    monkeypatch.setenv("REMAT_MEMORY_BUDGET", "0.8")
    module, x = model(), torch.randn(64, 32)
    expected = gradients(module, module, x)
    before = inductor_config.get_config_copy()
    found = gradients(module, torch.compile(module, backend=partial(remat, **arguments), dynamic=False), x)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(expected, found, strict=True))
    assert seen
    assert all(one == settings for one in seen)
    assert inductor_config.get_config_copy() == before


def test_torch_compile_passes_a_mode_to_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_INNER", "eager")
    with pytest.raises(OptionError, match="mode='max-autotune-no-cudagraphs' is one of Inductor"):
        torch.compile(model(), backend=remat, mode="max-autotune-no-cudagraphs")(torch.randn(4, 32))


SLIPS = """
import torch
from torch import nn

layers = [layer for _ in range(3) for layer in (nn.Linear(32, 32), nn.Tanh())]
compiled = torch.compile(nn.Sequential(*layers), backend="remat", options=OPTIONS)
compiled(torch.randn(64, 32)).sum().backward()
"""


@pytest.mark.parametrize(
    ("given", "last"),
    [
        ({"memory_bugdet": 1}, "OptionError: unknown option 'memory_bugdet'; did you mean 'memory_budget'?"),
        ({"memory_budget": 100, "inner": "eager"}, "InfeasibleBudget: no plan fits memory_budget=100 "),
        ({"planner": "ipl"}, "UnknownName: unknown planner 'ipl'; did you mean 'ilp'"),
    ],
)
def test_a_user_sees_a_short_traceback_that_ends_in_the_error(
    given: dict[str, object], last: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SLIPS.replace("OPTIONS", repr(given)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "passes")))}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    told = done.stderr[done.stderr.index("Traceback") :]
    assert done.returncode == 1
    assert told.count("Traceback") == 1
    assert "compiled(torch.randn(64, 32))" in told
    assert "reporting a bug" not in told
    assert "convert_frame.py" not in told
    lines = told.strip().splitlines()
    assert lines[-1].startswith(f"remat_compiler.errors.{last}")
    assert len(lines) < 20
