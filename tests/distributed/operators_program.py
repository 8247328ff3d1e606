"""What each rank of `test_operators_of_ranks` runs: operators of another library that wait for the other ranks inside.

    python operators_program.py RANK SIZE FOLDER [case ...]

Each case tells the largest difference of a gradient from eager, and how often its operator ran in each compiled step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from distributed.rank_process import OPTIONS, RANK, SIZE, difference, run_all
from remat_compiler.backend import remat

RUNS: list[str] = []
Run = Callable[[Tensor], Tensor]


def communicating(name: str, run: Run, back: Run | None = None) -> Any:
    """An operator that calls `run`, and in the backward `back`, or `run` again."""

    def noted(x: Tensor, run: Run) -> Tensor:
        RUNS.append(name)
        return run(x.contiguous().clone())

    def forward(x: Tensor) -> Tensor:
        return noted(x, run)

    def backward(x: Tensor) -> Tensor:
        return noted(x, back or run)

    made = [
        torch.library.custom_op(f"of_ranks::{name}{end}", one, mutates_args=())
        for end, one in (("", forward), ("_back", backward))
    ]
    rows = SIZE if name == "gathered" else 1
    made[0].register_fake(lambda x: x.new_empty(len(x) * rows, *x.shape[1:]))
    made[1].register_fake(lambda x: x.new_empty(len(x) // rows, *x.shape[1:]))
    made[0].register_autograd(lambda ctx, gradient: made[1](gradient))
    return made[0]


def mean(x: Tensor) -> Tensor:
    dist.all_reduce(x)
    return x / SIZE


def of_first(x: Tensor) -> Tensor:
    dist.broadcast(x, 0)
    return x


def rows_of_all(x: Tensor) -> Tensor:
    parts = [torch.empty_like(x) for _ in range(SIZE)]
    dist.all_gather(parts, x)
    return torch.cat(parts)


def own_rows(x: Tensor) -> Tensor:
    dist.all_reduce(x)
    return x.chunk(SIZE)[RANK].clone()


def past_the_next(x: Tensor) -> Tensor:
    """Each rank hands its values to the next one, and gets those of the last."""
    received = torch.empty_like(x)
    sent = dist.isend(x, (RANK + 1) % SIZE)
    dist.recv(received, (RANK - 1) % SIZE)
    assert sent is not None
    sent.wait()
    return received


OPERATORS = {
    "mean": communicating("mean", mean),
    "first": communicating("first", of_first, mean),
    "gathered": communicating("gathered", rows_of_all, own_rows),
    "passed": communicating("passed", past_the_next),
}


def trained(name: str, cost_model: str) -> dict[str, Any]:
    """Two steps of a model with the operator between its layers."""
    torch.manual_seed(0)
    model = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
    x, operator = torch.full((32, 16), RANK + 0.5) + torch.arange(16) / 16, OPERATORS[name]

    def step(x: Tensor) -> Tensor:
        y = operator(torch.tanh(model[0](x)).sin())
        return torch.tanh(model[2](torch.tanh(model[1](y)).sin())).square().mean()

    def gradients() -> list[Tensor | None]:
        return [p.grad for p in model.parameters()]

    step(x).backward()
    expected = gradients()
    options = {**OPTIONS, "memory_budget": "min", "cost_model": cost_model}
    compiled: Any = torch.compile(step, backend=partial(remat, options=options))
    differences, runs = [], []
    for _ in range(2):
        model.zero_grad()
        RUNS.clear()
        compiled(x).backward()
        runs.append(len(RUNS))
        differences.append(difference(gradients(), expected))
    return {"difference": max(differences), "runs": runs}


def main() -> None:
    """Run everything; the results go to the folder."""
    run_all(
        {
            "mean": lambda: trained("mean", "measured"),
            "first": lambda: trained("first", "nominal"),
            "gathered": lambda: trained("gathered", "nominal"),
            "passed": lambda: trained("passed", "measured"),
        }
    )


if __name__ == "__main__":
    main()
