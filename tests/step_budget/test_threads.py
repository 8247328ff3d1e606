"""Threads that train a model each: nobody sees what another one compiles, traces or runs."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx import traceback
from torch.fx.experimental.proxy_tensor import make_fx

from remat_compiler import torch_compat
from versions import DENSE_GRADIENTS, TRACING_HOLDS_OTHER_THREADS

BATCH = 256


pytestmark = pytest.mark.usefixtures("compiles_anew")


def in_threads(*functions: Callable[[], None]) -> None:
    """Run each in a thread of its own, at once.

    Raises:
        BaseException: What the first of them raised.
    """
    failed: list[BaseException] = []

    def guarded(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:  # joined with the others first
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def layers(width: int) -> nn.Sequential:
    """Four layers with a nonlinearity behind each."""
    return nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(width, width), nn.Tanh())])


@pytest.mark.parametrize("inner", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_threads_share_their_own_budgets(inner: str) -> None:
    torch._dynamo.lookup_backend("remat")  # that two threads load a backend at once is a race within torch

    def trainer(width: int) -> Callable[[], None]:
        first, second, x = layers(width), layers(width), torch.randn(BATCH, width)
        options = {
            "memory_budget": int((6.5 + DENSE_GRADIENTS) * x.numel() * 4),
            "inner": inner,
            "cost_model": "nominal",
        }

        def train() -> None:
            f, g = (torch.compile(m, backend="remat", dynamic=False, options=options) for m in (first, second))
            parameters = [*first.parameters(), *second.parameters()]
            wanted = torch.autograd.grad(second(first(x)).sum(), parameters)
            for _ in range(3):
                got = torch.autograd.grad(g(f(x)).sum(), parameters)
                torch.testing.assert_close(got, wanted)

        return train

    in_threads(*(trainer(width) for width in (32, 40, 48)))


@pytest.mark.skipif(TRACING_HOLDS_OTHER_THREADS, reason="torch before 2.13 cannot do that with any backend")
def test_a_compiled_function_runs_while_another_thread_compiles_again() -> None:
    compiled = torch.compile(torch.sin, backend="eager")
    x = torch.randn(4)
    assert torch.equal(compiled(x), x.sin())
    found: list[Tensor] = []

    def traced(y: Tensor) -> Tensor:
        in_threads(lambda: found.append(compiled(x)))
        return y.cos()

    with torch_compat.compiling():
        make_fx(traced)(torch.randn(4))
    assert len(found) == 1
    assert torch.equal(found[0], x.sin())


def test_what_the_interpreter_runs_is_not_what_is_traced() -> None:
    graph = fx.symbolic_trace(lambda x: x + x)
    traced = fx.Graph().placeholder("traced")
    traced.meta["stack_trace"] = "the function that is traced"
    seen: list[dict[str, object]] = []

    class Looking(torch_compat.StepInterpreter):
        def call_function(self, *arguments: object) -> object:
            seen.append(dict(traceback.get_current_meta()))
            return super().call_function(*arguments)

    with traceback.preserve_node_meta(), traceback.set_current_meta(traced):
        before = dict(traceback.get_current_meta())
        assert torch.equal(Looking(graph).run(torch.ones(2)), torch.full((2,), 2.0))
    assert seen == [before]


def test_kernels_are_left_out_in_one_thread_only() -> None:
    x = torch.randn(8)

    def train() -> None:
        compiled = torch.compile(lambda value: value.sin().cos(), backend="inductor")
        torch.testing.assert_close(compiled(x), x.sin().cos())

    with torch_compat.code_generation_only():
        in_threads(train)
        left_out = torch.compile(lambda value: value.cos().exp(), backend="inductor")
        with pytest.raises(RuntimeError, match="kernels were not compiled"):
            left_out(x)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(torch.exp, backend="inductor")(x), x.exp())
