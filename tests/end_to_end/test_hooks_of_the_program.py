"""The hooks and modes of a program see its own values, as often as with PyTorch's own backend, and no fake ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

Seen = list[str]
"""Names of the types of the values that a hook was given."""
OPTIONS: dict[str, Any] = {"inner": "eager", "cost_model": "nominal", "on_infeasible": "min"}


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))


class Net(nn.Module):
    """Two graphs, so that plans are made again in the second step."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(*[nn.Linear(16, 16), nn.GELU()] * 3)
        self.second = nn.Sequential(*[nn.Linear(16, 16), nn.GELU()] * 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


def as_arrays(seen: Seen) -> AbstractContextManager[Any]:
    """Saved values as arrays of numpy, which a value without data cannot become."""

    def pack(value: Tensor) -> Any:
        seen.append(type(value).__name__)
        return value.detach().numpy().copy()

    return saved_tensors_hooks(pack, torch.from_numpy)


def in_half(seen: Seen) -> AbstractContextManager[Any]:
    """Saved values in half their bytes."""

    def pack(value: Tensor) -> tuple[torch.dtype, Tensor]:
        seen.append(type(value).__name__)
        return value.dtype, value.to(torch.bfloat16)

    return saved_tensors_hooks(pack, lambda packed: packed[1].to(packed[0]))


def on_disk(seen: Seen) -> AbstractContextManager[Any]:
    """Saved values in files, as PyTorch's tutorial of such hooks has them."""

    def pack(value: Tensor) -> Any:
        seen.append(type(value).__name__)
        file = TemporaryFile()  # noqa: SIM115 - it is gone with the graph
        torch.save(value.detach().clone(), file)
        return file

    def unpack(file: Any) -> Tensor:
        file.seek(0)
        value: Tensor = torch.load(file)
        return value

    return saved_tensors_hooks(pack, unpack)


def on_the_cpu(_: Seen) -> AbstractContextManager[Any]:
    return save_on_cpu()


class _Functions(TorchFunctionMode):
    """Notes the types of the tensors that functions of torch return."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch._subclasses.FakeTensor):
            self.seen.append("FakeTensor")
        return result


HOOKS: tuple[Callable[[Seen], AbstractContextManager[Any]], ...] = (as_arrays, in_half, on_disk, on_the_cpu)


def _trained(
    backend: str, around: Callable[[], AbstractContextManager[Any]], call: Callable[..., Tensor] | None = None, **o: Any
) -> list[Tensor]:
    """Losses and gradients of three steps whose forward runs within `around`, by `call` of the module and inputs."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = Net(), torch.randn(64, 16)
    compiled = torch.compile(model, backend=backend, options=o or None)
    found = []
    for _ in range(3):
        model.zero_grad()
        with around():
            loss = (compiled(x) if call is None else call(compiled, x)).pow(2).mean()
        loss.backward()
        found += [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    return found


@pytest.mark.parametrize("budget", [1.0, 0.7, "1GiB"])
@pytest.mark.parametrize("hooks", HOOKS)
def test_hooks_of_saved_values_see_those_of_the_program(hooks: Any, budget: float | str) -> None:
    stock: Seen = []
    seen: Seen = []
    expected = _trained("aot_eager", lambda: hooks(stock))
    found = _trained("remat", lambda: hooks(seen), memory_budget=budget, **OPTIONS)
    # Values saved in half their bytes round, and which values are saved is for the plan to say.
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.01)
    assert "FakeTensor" not in seen
    assert budget != "1GiB" or len(seen) == len(stock)


@pytest.mark.parametrize("budget", [1.0, 0.7, "min"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_around_compiled_modules(reentrant: bool, budget: float | str) -> None:
    def call(compiled: Callable[..., Tensor], x: Tensor) -> Tensor:
        result: Tensor = checkpoint(compiled, x.clone().requires_grad_(), use_reentrant=reentrant)
        return result

    expected = _trained("aot_eager", nullcontext, call)
    torch.testing.assert_close(_trained("remat", nullcontext, call, memory_budget=budget, **OPTIONS), expected)


def _around(call: Callable[..., Tensor], *inputs: Any, **options: Any) -> Tensor:
    result: Tensor = checkpoint(call, *inputs, use_reentrant=False, **options)
    return result


def within_another(compiled: Callable[..., Tensor], x: Tensor) -> Tensor:
    return _around(lambda x: _around(compiled, x.sin()) * x, x)


def twice_in_one(compiled: Callable[..., Tensor], x: Tensor) -> Tensor:
    return _around(lambda x: compiled(compiled(x).sin()), x)


def one_by_one(compiled: Callable[..., Tensor], x: Tensor) -> Tensor:
    """The same graphs in two regions, which are computed again in the opposite order."""
    result: Tensor = checkpoint_sequential([compiled, torch.tanh, compiled], 2, x, use_reentrant=False)
    return result


def beside_random_numbers(compiled: Callable[..., Tensor], x: Tensor) -> Tensor:
    return _around(lambda x: F.dropout(compiled(F.dropout(x, 0.3)), 0.3), x)


AROUND = (within_another, twice_in_one, one_by_one, beside_random_numbers)


@pytest.mark.parametrize("budget", [0.7, "min"])
@pytest.mark.parametrize("region", AROUND)
def test_regions_around_calls_of_compiled_modules(region: Callable[..., Tensor], budget: float | str) -> None:
    def call(compiled: Callable[..., Tensor], x: Tensor) -> Tensor:
        return region(compiled, x.clone().requires_grad_())

    expected = _trained("aot_eager", nullcontext, call)
    torch.testing.assert_close(_trained("remat", nullcontext, call, memory_budget=budget, **OPTIONS), expected)


def test_modes_of_functions_see_the_functions_of_the_program() -> None:
    stock: Seen = []
    seen: Seen = []
    expected = _trained("aot_eager", lambda: _Functions(stock))
    found = _trained("remat", lambda: _Functions(seen), memory_budget=0.7, **OPTIONS)
    torch.testing.assert_close(found, expected)
    assert len(seen) <= len(stock)


def test_hooks_of_modules_and_parameters_run_as_often() -> None:
    def trained(backend: str, **o: Any) -> tuple[list[Tensor], Seen]:
        seen: Seen = []

        def call(compiled: Any, x: Tensor) -> Tensor:
            model = compiled._orig_mod
            if not seen:
                model.register_forward_hook(lambda *given: seen.append("forward"))
                model.register_full_backward_hook(lambda *given: seen.append("backward"))
                for p in model.parameters():
                    p.register_post_accumulate_grad_hook(lambda p: seen.append(type(p.grad).__name__))
                seen.append("hooked")
            result: Tensor = compiled(x.clone().requires_grad_())
            return result

        return _trained(backend, nullcontext, call, **o), seen

    (expected, stock), (found, seen) = trained("aot_eager"), trained("remat", memory_budget=0.7, **OPTIONS)
    torch.testing.assert_close(found, expected)
    assert seen == stock
