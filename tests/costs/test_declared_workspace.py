"""What users declare that operators take inside: counted in plans and peaks, at all sizes, and in the keys of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import remat_compiler
from instruments.measure import allocator_events, live_bytes
from remat_compiler import declare_workspace
from remat_compiler.backend import remat
from remat_compiler.compilation.graph_key import plan_key
from remat_compiler.costs.declared_workspace import declared_workspaces
from remat_compiler.costs.op_call import OpCall
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.errors import OptionError
from remat_compiler.options import RematOptions
from remat_compiler.partition.partitioner import RematPartitioner
from remat_compiler.partition.request import PartitionRequest

aten = torch.ops.aten


@torch.library.custom_op("remat_workspace::doubled", mutates_args=())
def doubled(x: Tensor, times: int = 2) -> Tensor:
    """Takes two of its argument inside."""
    return torch.cat([x] * times)[: len(x)].clone()


doubled.register_fake(lambda x, times=2: torch.empty_like(x))
doubled.register_autograd(lambda ctx, gradient: (gradient, None))
OVERLOAD = torch.ops.remat_workspace.doubled.default


@pytest.fixture(autouse=True)
def nothing_declared() -> Iterator[None]:
    yield
    declare_workspace(doubled, None)
    declare_workspace(aten.mm, None)


def probed(*arguments: Any, **keywords: Any) -> int:
    return WorkspaceTable().probe(OVERLOAD, arguments, keywords)


@pytest.mark.parametrize(
    "op",
    [
        doubled,
        torch.ops.remat_workspace.doubled,
        OVERLOAD,
        "remat_workspace::doubled",
        "remat_workspace::doubled.default",
    ],
)
def test_every_name_of_an_operator_declares_it_until_it_is_taken_back(op: object) -> None:
    declare_workspace(op, 100)
    assert probed(torch.empty(4)) == 100
    declare_workspace(op, None)
    assert probed(torch.empty(4)) == 0


def test_a_function_gets_the_arguments_of_each_call_without_data() -> None:
    seen = []

    def taken(x: Tensor, times: int = 2) -> int:
        seen.append((x.device.type, x.shape, x.stride(), x.dtype))
        return times * x.nbytes

    declare_workspace(doubled, taken)
    x = torch.empty(6, 4, dtype=torch.float64).t()
    assert probed(x) == 2 * x.nbytes
    assert probed(x, times=5) == 5 * x.nbytes
    assert seen[0] == ("meta", x.shape, x.stride(), x.dtype)


def test_a_declaration_goes_before_a_measurement() -> None:
    arguments = (torch.empty(64, 64), torch.empty(64, 64))
    measured = WorkspaceTable().probe(aten.mm.default, arguments, {})
    declare_workspace(aten.mm, 12345)
    assert WorkspaceTable().probe(aten.mm.default, arguments, {}) == 12345 != measured
    # An operator that runs with a random state is the same operator.
    call = OpCall.any(torch.ops.higher_order.run_and_save_rng_state, (aten.mm.default, *arguments), {})
    assert call is not None
    assert WorkspaceTable().resolve([call]) == {call.key: 12345}


@pytest.mark.parametrize("workspace", [-1, 1.5, True, "1MiB", [1]])
def test_what_is_no_number_of_bytes_is_refused(workspace: Any) -> None:
    with pytest.raises(OptionError, match="whole number of bytes"):
        declare_workspace(doubled, workspace)
    with pytest.raises(OptionError, match="operator that is registered"):
        declare_workspace("remat_workspace::nowhere", 1)


@pytest.mark.parametrize(("form", "says"), [(lambda x: -1, "got -1"), (lambda y, z: 0, "fails: TypeError")])
@pytest.mark.usefixtures("compiles_anew")
def test_a_function_that_fails_is_told_as_the_users(form: Callable[..., int], says: str) -> None:
    declare_workspace(doubled, form)
    weight = torch.randn(4, 4, requires_grad=True)
    step = torch.compile(lambda x: doubled(x @ weight).sum(), backend=remat, options={"inner": "eager"})
    with pytest.raises(Exception, match=f"the workspace declared of remat_workspace::doubled.*{says}"):
        step(torch.randn(4, 4))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.usefixtures("compiles_anew")
def test_predicted_peaks_hold_what_is_declared(dynamic: bool, caplog: pytest.LogCaptureFixture) -> None:
    declare_workspace(doubled, lambda x, times=2: times * x.nbytes)
    module = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
    # The formula by size decides at the second length, which only the declared bytes make too long.
    options = {"memory_budget": "80KiB", "inner": "eager", "cost_model": "nominal"}
    step = torch.compile(
        lambda x: doubled(module(x).sin()).cos().mean(), backend=remat, options=options, dynamic=dynamic
    )

    def trained(rows: int) -> int:
        x = torch.randn(rows, 16)
        step(x).backward()
        module.zero_grad(set_to_none=True)
        return max(live_bytes(allocator_events(lambda: step(x).backward())))

    measured = trained(128)
    (report,) = remat_compiler.reports()
    assert report.checked_peak_bytes == measured
    assert "doubled" not in caplog.text
    if dynamic:
        declare_workspace(doubled, 1 << 20)
        with pytest.raises(remat_compiler.InfeasibleBudget):
            trained(130)


def test_what_is_declared_is_in_the_keys_of_plans_and_of_compiled_code() -> None:
    def keys() -> tuple[str, str]:
        gm = fx.symbolic_trace(nn.Tanh())
        key = plan_key(gm, (torch.zeros(2),), RematOptions(), 7, "rates")
        return key.digest, RematPartitioner(PartitionRequest(7), "rates").uuid()

    def by(factor: int) -> Callable[[Tensor], int]:
        return lambda x: factor * x.nbytes

    found = [keys()]
    for workspace in (1, 2, by(1), by(2), lambda x: x.numel()):
        declare_workspace(doubled, workspace)
        found.append(keys())
    assert all(len(set(one)) == len(found) for one in zip(*found))
    before = declared_workspaces()
    declare_workspace(doubled, by(3))
    declare_workspace(doubled, lambda x: x.numel())
    declare_workspace(doubled, by(3))
    assert declared_workspaces() != before
    declare_workspace(doubled, None)
    assert keys() == found[0]
