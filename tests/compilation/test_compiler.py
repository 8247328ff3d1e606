"""One compilation by request: what it gives back, what goes through to the user, and what is compiled as stock."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from remat_compiler import torch_compat
from remat_compiler.compilation.compiler import Compiler
from remat_compiler.distributed.agreement import Alone, Point, Value
from remat_compiler.errors import Unplannable
from remat_compiler.observer import Observer, observed_by
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import NoPlan
from remat_compiler.partition.session import Session, current_session

REQUEST = PartitionRequest(None, inner="eager", cost_model="nominal")
PLANNED = replace(REQUEST, fraction=0.7)


class Layers(nn.Module):
    def forward(self, x: Tensor, weight: Tensor) -> tuple[Tensor]:
        for _ in range(6):
            x = torch.sin(x @ weight)
        return (x.sum(),)


def inputs(needs_gradients: bool = True) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(64, 32, generator=generator)
    return [x, (torch.randn(32, 32, generator=generator) / 6).requires_grad_(needs_gradients)]


def compiler_of(given: list[Tensor], session: Session | None = None) -> Compiler:
    return Compiler(fx.symbolic_trace(Layers()), given, (), session or Session(), "nominal", reported=False)


@dataclass
class Fails(Alone):
    """One of the ranks' points raises, as an unforeseen state of the planning behind it would."""

    point: Point
    error: Callable[[], Exception]
    reached: list[Point] = field(default_factory=list)

    def agree(self, point: Point, value: Value, question: Callable[[], str]) -> Value:
        self.reached.append(point)
        if point is self.point:
            raise self.error()
        return value


class Records(Observer):
    def __init__(self) -> None:
        self.requests: list[PartitionRequest] = []

    def attempt_begins(self, request: Any) -> None:
        self.requests.append(request)


def gradients(call: Callable[..., Any], given: list[Tensor]) -> list[Tensor]:
    for tensor in given:
        tensor.grad = None
    (loss,) = call(*given)
    loss.backward()
    grad = given[1].grad
    assert grad is not None
    return [loss.detach(), grad.clone()]


def test_a_try_has_the_code_its_partition_and_the_checked_peak() -> None:
    given = inputs()
    attempt = compiler_of(given).run(REQUEST)
    assert attempt.trains
    assert attempt.real
    assert attempt.partition is not None
    assert attempt.check.unknown == ""
    assert attempt.needed_bytes == attempt.check.peak_bytes > 0
    for got, expected in zip(gradients(attempt.compiled, given), gradients(Layers(), given)):
        assert torch.equal(got, expected)


def test_a_budget_is_planned_for_and_what_no_plan_reaches_is_refused() -> None:
    given = inputs()
    compiler = compiler_of(given)
    free = compiler.run(REQUEST)
    assert free.needed_bytes is not None
    limit = int(0.7 * free.needed_bytes)
    tight = compiler.run(replace(REQUEST, budget_bytes=limit))
    assert tight.needed_bytes is not None
    assert tight.needed_bytes <= limit
    assert tight.added_ns > 0
    assert torch.equal(gradients(tight.compiled, given)[1], gradients(Layers(), given)[1])
    with pytest.raises(NoPlan):
        compiler.run(replace(REQUEST, budget_bytes=1))


def test_each_try_begins_from_dynamos_graph() -> None:
    compiler = compiler_of(inputs())
    before = compiler.gm.code
    first, second = compiler.run(REQUEST), compiler.run(REQUEST)
    assert compiler.gm.code == before
    assert first.compiled is not second.compiled
    assert first.check == second.check


def test_without_gradients_there_is_nothing_to_check() -> None:
    attempt = compiler_of(inputs(needs_gradients=False)).run(REQUEST)
    assert not attempt.trains
    assert attempt.check.unknown == "no backward"
    assert attempt.needed_bytes is None


def test_other_inputs_give_the_same_code_and_the_first_ones_stay() -> None:
    given, others = inputs(), inputs()
    compiler = compiler_of(given)
    again = compiler.with_inputs(others)
    assert (again.example_inputs, compiler.example_inputs) == (others, given)
    assert again.gm is compiler.gm
    assert again.run(REQUEST).check == compiler.run(REQUEST).check


@pytest.mark.parametrize(
    ("error", "said", "is_a_defect"),
    [
        (lambda: Unplannable("this graph is beyond what can be planned"), "compiled as without a budget", False),
        (
            lambda: torch_compat.VALUE_ERRORS[1](torch.ops.aten.nonzero.default),
            "the result of aten.nonzero.default depends on data",
            False,
        ),
        (lambda: KeyError("mul_3"), "planning failed (KeyError: 'mul_3')", True),
    ],
    ids=["known limit", "not traced", "defect"],
)
def test_what_cannot_be_planned_is_compiled_as_stock_and_checked(
    error: Callable[[], Exception], said: str, is_a_defect: bool, caplog: pytest.LogCaptureFixture
) -> None:
    given = inputs()
    agreement = Fails(Point.PLAN, error)
    with caplog.at_level(logging.WARNING), observed_by(records := Records()):
        attempt = compiler_of(given, Session(agreement=agreement)).run(PLANNED)
    assert isinstance(attempt.failure, type(error()))
    assert attempt.failure.__traceback__ is None, "its frames would hold the step's tensors"
    assert attempt.trains
    assert attempt.partitions == ()
    assert attempt.check.peak_bytes > 0
    (message,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said in message
    assert ("report this as a defect" in message) is is_a_defect
    assert records.requests == [PLANNED, PLANNED]
    assert agreement.reached[0] is Point.COSTS
    assert torch.equal(gradients(attempt.compiled, given)[1], gradients(Layers(), given)[1])


def test_dynamos_own_restarts_go_through() -> None:
    compiler = compiler_of(inputs(), Session(agreement=Fails(Point.PLAN, torch_compat.DynamoRestart)))
    with pytest.raises(torch_compat.DynamoRestart), observed_by(records := Records()):
        compiler.run(PLANNED)
    assert len(records.requests) == 1


def test_the_partitioner_sees_the_session_only_while_it_compiles() -> None:
    session = Session(directory=None, parameters="made up")

    class Seen(Alone):
        def agree(self, point: Point, value: Value, question: Callable[[], str]) -> Value:
            if point is Point.PLAN:
                sessions.append(current_session().parameters)
            return value

    sessions: list[str] = []
    compiler_of(inputs(), replace(session, agreement=Seen())).run(PLANNED)
    assert sessions == ["made up"]
    assert current_session().parameters == ""
    assert session.partitions == []


def changes_a_saved_value(x: Tensor) -> Tensor:
    y = torch.sigmoid(x)
    y.mul_(2)
    return y.sum()


def changes_a_view_of_one(x: Tensor) -> Tensor:
    y = torch.exp(x)
    y[0].add_(1)
    return y.sum()


def changes_what_a_product_needs(x: Tensor) -> Tensor:
    y = x + 1
    z = (y * y).sum()
    y.zero_()
    return z + y.sum()


def changes_probabilities(x: Tensor) -> Tensor:
    y = torch.softmax(x, 1)
    y += 0.1
    return y.square().sum()


REFUSED = (changes_a_saved_value, changes_a_view_of_one, changes_what_a_product_needs, changes_probabilities)


@pytest.mark.parametrize("program", REFUSED)
@pytest.mark.usefixtures("compiles_anew")
def test_a_program_that_autograd_refuses_is_no_defect_of_planning(
    program: Callable[[Tensor], Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    """In eager, too: the error is the program's own, and torch's words say so."""
    for compiled in (
        program,
        torch.compile(program, backend="remat", options={"memory_budget": 1.0, "inner": "eager"}),
    ):
        with pytest.raises(Exception, match="modified by an inplace operation"):
            compiled(torch.randn(4, 4, requires_grad=True)).backward()
    assert not any("planning failed" in said for said in caplog.messages)
