"""Training loops as people write them, each runnable in eager, under a stock backend and under a budget.

    outcome_of("gradient accumulation", budget=0.8)

A loop is a model, what compiles it, and a step.  Its gradients are compared with those of eager after each of a few
steps, and the peak of one more step with the budget, which is a share of the peak under ``aot_eager``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import remat_compiler
from measure import measure_step
from remat_compiler.backend import remat
from remat_compiler.errors import InfeasibleBudget

BATCH, WIDTH, LAYERS, STEPS = 256, 64, 4, 3
Backend = Callable[..., Any] | str


def batch(number: int) -> Tensor:
    """The inputs of a step; made once, so that they are resident."""
    return _BATCHES[number % len(_BATCHES)]


_BATCHES = [torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(n)) for n in range(2)]
_WORDS = [torch.randint(0, 100, (32, 8), generator=torch.Generator().manual_seed(n)) for n in range(2)]
_IMAGES = [
    torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(n)).to(memory_format=torch.channels_last)
    for n in range(2)
]


class Block(nn.Module):
    """A feed-forward block with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), 0.1, self.training)


class Net(nn.Module):
    """A stem, blocks, and a loss; `how` runs a block, `broken` cuts the graph after each."""

    def __init__(self, how: Callable[[nn.Module, Tensor], Tensor] | None = None, broken: bool = False) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.how, self.broken = how, broken

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x) if self.how is None else self.how(block, x)
            if self.broken:
                torch._dynamo.graph_break()
        return self.head(x).square().mean()


class Tied(Net):
    """The first block's weight is used again in the last, the second block is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[-1].up.weight = self.blocks[0].up.weight
        self.blocks[1].requires_grad_(False)


class LowRank(nn.Module):
    """A frozen linear layer with a trained low-rank addition."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.randn(base.out_features, rank) / rank)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.dropout(x, 0.1, self.training) @ self.a.t() @ self.b.t()


class Heavy(nn.Module):
    """One MiB of weights a layer, so that DDP has several buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(512, 512) for _ in range(6)])

    def forward(self, x: Tensor) -> Tensor:
        x = x.repeat(1, 8)
        for layer in self.layers:
            x = F.gelu(layer(x))
        return x.square().mean()


class Unused(Heavy):
    """A layer takes no part in the step."""

    def __init__(self) -> None:
        super().__init__()
        self.never = nn.Linear(WIDTH, WIDTH)


class Words(nn.Module):
    """Sparse gradients of an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.net = nn.Embedding(100, WIDTH, sparse=True), Net()

    def forward(self, words: Tensor) -> Tensor:
        loss: Tensor = self.net(self.embed(words))
        return loss


class Images(nn.Module):
    """Convolutions and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(3 if i == 0 else 16, 16, 3, padding=1) for i in range(LAYERS)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(16) for _ in range(LAYERS)])

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms):
            x = F.relu(norm(conv(x)))
        return x.square().mean()


class Recurrent(nn.Module):
    """A module that Dynamo does not look into."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.net = nn.LSTM(WIDTH, WIDTH, batch_first=True), Net()

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.net(self.rnn(x.view(32, 8, WIDTH))[0])
        return loss


def _low_rank() -> nn.Module:
    net = Net()
    for block in net.blocks:
        block.up, block.down = LowRank(block.up), LowRank(block.down)
    return net


def _peft() -> nn.Module:
    peft = __import__("peft")
    made: nn.Module = peft.get_peft_model(Net(), peft.LoraConfig(r=4, lora_dropout=0.1, target_modules=["up", "down"]))
    return made


def _halve(parameter: Tensor) -> None:
    assert parameter.grad is not None, "the hook runs after the gradient is there"
    parameter.grad.mul_(0.5)


def _hooked() -> nn.Module:
    net = Net()
    for block in net.blocks:
        block.register_full_backward_hook(lambda module, grads, outs: (grads[0] * 0.9,))
        block.register_forward_hook(lambda module, inputs, output: output * 1.1)
        block.up.weight.register_hook(lambda gradient: gradient * 2)
    net.head.weight.register_post_accumulate_grad_hook(_halve)
    return net


Step = Callable[[Any, nn.Module, int], object]


def _step(call: Any, model: nn.Module, number: int) -> None:
    model.zero_grad(set_to_none=True)
    call(batch(number)).backward()


def _accumulate(call: Any, model: nn.Module, number: int) -> None:
    model.zero_grad(set_to_none=True)
    for micro in range(3):
        (call(batch(number + micro)) / 3).backward()


def _scaled(call: Any, model: nn.Module, number: int) -> None:
    model.zero_grad(set_to_none=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler.scale(call(batch(number))).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


def _autocast(call: Any, model: nn.Module, number: int) -> None:
    model.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16):
        loss = call(batch(number))
    loss.backward()


def _trained(call: Any, model: nn.Module, number: int) -> None:
    _step(call, model, number)
    torch.optim.SGD(model.parameters(), lr=0.01).step()


def _evaluated(call: Any, model: nn.Module, number: int) -> None:
    model.eval()
    with torch.no_grad():
        call(batch(number + 1))
    model.train()
    _trained(call, model, number)


def _two_losses(call: Any, model: nn.Module, number: int) -> None:
    model.zero_grad(set_to_none=True)
    loss = call(batch(number))
    loss.backward(retain_graph=True)
    (loss * 0.5).backward()


def _twice_differentiated(call: Any, model: nn.Module, number: int) -> None:
    model.zero_grad(set_to_none=True)
    loss = call(batch(number))
    found = torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad], create_graph=True)
    sum(g.square().sum() for g in found).backward()  # type: ignore[union-attr]


def _with(samples: list[Tensor]) -> Step:
    def step(call: Any, model: nn.Module, number: int) -> None:
        model.zero_grad(set_to_none=True)
        call(samples[number % len(samples)]).backward()

    return step


def _without_sync(call: Any, model: nn.Module, number: int) -> None:
    model.zero_grad(set_to_none=True)
    with call.no_sync():
        call(batch(number)).backward()
    call(batch(number + 1)).backward()


def _whole(model: nn.Module, backend: Backend) -> Any:
    return torch.compile(model, backend=backend)


def _by_block(model: nn.Module, backend: Backend) -> Any:
    for block in model.blocks:  # type: ignore[union-attr]
        block.compile(backend=backend)  # type: ignore[union-attr]
    return model


def _ddp(model: nn.Module, backend: Backend | None, **options: Any) -> Any:
    wrapped = DistributedDataParallel(model, bucket_cap_mb=2, **options)
    return wrapped if backend is None else torch.compile(wrapped, backend=backend)


def _ddp_of_compiled(model: nn.Module, backend: Backend | None) -> Any:
    if backend is not None:
        model.compile(backend=backend)
    return DistributedDataParallel(model, bucket_cap_mb=2)


def _tensor_parallel() -> nn.Module:
    """The feed-forward of each block split over the ranks."""
    net, mesh = Net(), init_device_mesh("cpu", (dist.get_world_size(),))
    for block in net.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return net


def _distributed() -> nn.Module:
    """Parameters and inputs are DTensors."""
    return distribute_module(Heavy(), init_device_mesh("cpu", (dist.get_world_size(),)))


def _distributed_step(call: Any, model: nn.Module, number: int) -> None:
    model.zero_grad(set_to_none=True)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    call(distribute_tensor(batch(number), mesh, [Replicate()])).backward()


@dataclass(frozen=True, slots=True)
class Loop:
    """One row of the matrix.

    Attributes:
        model: Makes the model; the random state is set before.
        step: A whole step, called with what is compiled, the model, and the number of the step.
        compiled: Compiles the model; for loops that wrap it, a backend of `None` means eager.
        wraps: Whether eager needs `compiled`, too.
        distributed: Whether a process group is needed.
        slack_bytes: What eager code of the step takes besides; peaks count it, budgets do not.
        tolerance: Relative and absolute difference that gradients may have.
        needs: A package that the loop imports.
    """

    model: Callable[[], nn.Module]
    step: Step = _step
    compiled: Callable[[nn.Module, Any], Any] = _whole
    wraps: bool = False
    distributed: bool = False
    slack_bytes: int = 64
    tolerance: float = 1e-5
    needs: str = ""


_GRADIENTS = sum(p.numel() * 4 for p in Net().parameters())
_KEEP_PRODUCTS = partial(
    create_selective_checkpoint_contexts, [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
)


def _checkpointed(**options: Any) -> Callable[[], nn.Module]:
    return lambda: Net(lambda block, x: checkpoint(block, x, **options))  # type: ignore[no-any-return]


def _ddp_loop(step: Step = _step, model: Callable[[], nn.Module] = Heavy, **options: Any) -> Loop:
    return Loop(model, step, partial(_ddp, **options), wraps=True, distributed=True, slack_bytes=65536)


LOOPS: dict[str, Loop] = {
    "one graph": Loop(Net),
    "with an optimizer": Loop(Net, _trained),
    "gradient accumulation": Loop(Net, _accumulate),
    "GradScaler": Loop(Net, _scaled, slack_bytes=1024),
    "autocast to bfloat16": Loop(Net, _autocast, tolerance=2e-2),
    "channels-last": Loop(lambda: Images().to(memory_format=torch.channels_last), _with(_IMAGES), tolerance=1e-4),  # type: ignore[call-overload]
    "block by block": Loop(Net, compiled=_by_block, slack_bytes=2 * BATCH * WIDTH * 4),
    "graph break after each layer": Loop(lambda: Net(broken=True)),
    "DDP": _ddp_loop(),
    "DDP around a compiled model": Loop(Heavy, _step, _ddp_of_compiled, True, True, 65536),
    "DDP, find_unused_parameters": _ddp_loop(model=Unused, find_unused_parameters=True),
    "DDP, static_graph": _ddp_loop(static_graph=True),
    "DDP, gradient_as_bucket_view": _ddp_loop(gradient_as_bucket_view=True),
    "DDP, no_sync": _ddp_loop(_without_sync),
    "tensor parallelism": Loop(_tensor_parallel, distributed=True),
    "DTensor inputs": Loop(_distributed, _distributed_step, distributed=True),
    "LoRA by hand": Loop(_low_rank),
    "LoRA of peft": Loop(_peft, needs="peft"),
    "tied and frozen weights": Loop(Tied),
    "checkpoint, not reentrant": Loop(_checkpointed(use_reentrant=False)),
    "checkpoint, reentrant": Loop(_checkpointed(use_reentrant=True)),
    "selective checkpoint": Loop(_checkpointed(use_reentrant=False, context_fn=_KEEP_PRODUCTS)),
    "sparse embedding": Loop(Words, _with(_WORDS)),
    "hooks": Loop(_hooked),
    "two losses, retain_graph": Loop(Net, _two_losses, slack_bytes=_GRADIENTS),
    "double backward": Loop(Net, _twice_differentiated),
    "eval between steps": Loop(Net, _evaluated),
    "nn.LSTM": Loop(Recurrent),
}
"""The matrix, apart from what needs two ranks."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a loop.

    Attributes:
        verdict: ``kept``, ``over, warned``, ``over in silence``, ``refused``, ``wrong``, ``crash`` or ``as stock``.
        detail: The error or the difference.
        stock_bytes: Measured peak under ``aot_eager``, or 0 where that fails.
        budget_bytes: The budget.
        measured_bytes: Measured peak under it, or 0.
        planned: How many graphs were planned.
    """

    verdict: str
    detail: str = ""
    stock_bytes: int = 0
    budget_bytes: int = 0
    measured_bytes: int = 0
    planned: int = 0

    @property
    def good(self) -> bool:
        """Whether the promise holds."""
        return self.verdict in ("kept", "over, warned", "refused", "as stock")


@dataclass(slots=True)
class _Run:
    """What the steps of a loop left, and the peak of the one after them; the error in its place."""

    gradients: list[dict[str, Tensor | None]] = field(default_factory=list)
    peak_bytes: int = 0
    error: Exception | None = None


def outcome_of(name: str, budget: float = 0.8, **options: Any) -> Outcome:
    """Train a loop in eager, under ``aot_eager``, and under `budget` of the latter's peak."""
    loop = LOOPS[name]
    expected, stock = _run(loop, None), _run(loop, "aot_eager")
    if expected.error is not None:
        raise expected.error
    allowed = int(budget * (stock.peak_bytes or expected.peak_bytes))
    remat_compiler.clear_reports()
    given = {
        "memory_budget": allowed,
        "inner": "eager",
        "cost_model": "nominal",
        "max_slowdown": None,
        "time_limit": 0.05,
    }
    with _warnings() as heard:
        found = _run(loop, partial(remat, options={**given, "on_infeasible": "min", **options}))
    return _judged(loop, expected, stock, found, allowed, heard)


def _judged(loop: Loop, expected: _Run, stock: _Run, found: _Run, allowed: int, heard: list[str]) -> Outcome:
    figures = (stock.peak_bytes, allowed, found.peak_bytes, len(remat_compiler.reports()))
    if found.error is not None:
        detail = f"{type(found.error).__name__}: {str(found.error).strip().splitlines()[0][:200]}"
        alike = stock.error is not None and type(stock.error) is type(found.error)
        refused = isinstance(found.error, InfeasibleBudget)
        return Outcome("refused" if refused else "as stock" if alike else "crash", detail, *figures)
    wrong = _differences(expected, found, loop.tolerance)
    if wrong:
        alike = stock.error is None and not _differences(stock, found, loop.tolerance)
        return Outcome("as stock" if alike else "wrong", "; ".join(wrong[:3]), *figures)
    if found.peak_bytes <= allowed + loop.slack_bytes:
        return Outcome("kept", "", *figures)
    return Outcome("over, warned" if heard else "over in silence", "; ".join(heard)[:300], *figures)


def _run(loop: Loop, backend: Backend | None) -> _Run:
    """The steps of a loop."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    run = _Run()
    try:
        model = loop.model()
        call = model if backend is None and not loop.wraps else loop.compiled(model, backend)
        for number in range(STEPS):
            torch.manual_seed(number)
            loop.step(call, model, number)
            run.gradients.append({name: _local(p.grad) for name, p in model.named_parameters()})
        run.peak_bytes = measure_step(lambda: loop.step(call, model, STEPS), warmup=1).peak_bytes
    except Exception as error:  # whatever it is, it is what the row shows
        run.error = getattr(error, "inner_exception", None) or error
    return run


def _local(gradient: Tensor | None) -> Tensor | None:
    """A copy of this rank's part."""
    if gradient is None:
        return None
    part = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return (part.to_dense() if part.is_sparse else part).detach().clone()


def _differences(expected: _Run, found: _Run, tolerance: float) -> list[str]:
    return [
        f"step {number}: gradient of {name}"
        for number, (before, after) in enumerate(zip(expected.gradients, found.gradients))
        for name in before
        if not _close(before[name], after[name], tolerance)
    ]


def _close(expected: Tensor | None, found: Tensor | None, tolerance: float) -> bool:
    if expected is None or found is None:
        return expected is found
    return torch.allclose(found.float(), expected.float(), rtol=tolerance, atol=tolerance)


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """What the compiler warns of meanwhile."""
    heard: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("remat_compiler")
    logger.addHandler(handler)
    try:
        yield heard
    finally:
        logger.removeHandler(handler)


@contextmanager
def process_group() -> Iterator[None]:
    """One rank, without a network."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
