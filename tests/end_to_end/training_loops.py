"""Training loops as people write them: each is a model, what compiles it, and a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from end_to_end.loop_models import (
    BATCH,
    IMAGES,
    WIDTH,
    WORDS,
    Heavy,
    Images,
    Net,
    Recurrent,
    Step,
    Tied,
    Unused,
    Words,
    hooked,
    low_rank,
    peft,
)
from end_to_end.loop_steps import (
    accumulate,
    autocast,
    by_block,
    ddp_of_compiled,
    distributed_model,
    distributed_step,
    evaluated_between,
    in_ddp,
    one_step,
    optimized,
    scaled,
    step_on,
    tensor_parallel,
    twice_differentiated,
    two_losses,
    whole_model,
    without_sync,
)


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
    step: Step = one_step
    compiled: Callable[[nn.Module, Any], Any] = whole_model
    wraps: bool = False
    distributed: bool = False
    slack_bytes: int = 64
    tolerance: float = 1e-5
    needs: str = ""


GRADIENT_BYTES = sum(p.numel() * 4 for p in Net().parameters())
_KEEP_PRODUCTS = partial(
    create_selective_checkpoint_contexts, [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
)


def _checkpointed(**options: Any) -> Callable[[], nn.Module]:
    return lambda: Net(lambda block, x: checkpoint(block, x, **options))  # type: ignore[no-any-return]


def _ddp_loop(step: Step = one_step, model: Callable[[], nn.Module] = Heavy, **options: Any) -> Loop:
    return Loop(model, step, partial(in_ddp, **options), wraps=True, distributed=True, slack_bytes=65536)


LOOPS: dict[str, Loop] = {
    "one graph": Loop(Net),
    "with an optimizer": Loop(Net, optimized),
    "gradient accumulation": Loop(Net, accumulate),
    "GradScaler": Loop(Net, scaled, slack_bytes=1024),
    "autocast to bfloat16": Loop(Net, autocast, tolerance=2e-2),
    "channels-last": Loop(lambda: Images().to(memory_format=torch.channels_last), step_on(IMAGES), tolerance=1e-4),  # type: ignore[call-overload]
    "block by block": Loop(Net, compiled=by_block, slack_bytes=2 * BATCH * WIDTH * 4),
    "graph break after each layer": Loop(lambda: Net(broken=True)),
    "DDP": _ddp_loop(),
    "DDP around a compiled model": Loop(Heavy, one_step, ddp_of_compiled, True, True, 65536),
    "DDP, find_unused_parameters": _ddp_loop(model=Unused, find_unused_parameters=True),
    "DDP, static_graph": _ddp_loop(static_graph=True),
    "DDP, gradient_as_bucket_view": _ddp_loop(gradient_as_bucket_view=True),
    "DDP, no_sync": _ddp_loop(without_sync),
    "tensor parallelism": Loop(tensor_parallel, distributed=True),
    "DTensor inputs": Loop(distributed_model, distributed_step, distributed=True),
    "LoRA by hand": Loop(low_rank),
    "LoRA of peft": Loop(peft, needs="peft"),
    "tied and frozen weights": Loop(Tied),
    "checkpoint, not reentrant": Loop(_checkpointed(use_reentrant=False)),
    "checkpoint, reentrant": Loop(_checkpointed(use_reentrant=True)),
    "selective checkpoint": Loop(_checkpointed(use_reentrant=False, context_fn=_KEEP_PRODUCTS)),
    "sparse embedding": Loop(Words, step_on(WORDS)),
    "hooks": Loop(hooked),
    "two losses, retain_graph": Loop(Net, two_losses, slack_bytes=GRADIENT_BYTES),
    "double backward": Loop(Net, twice_differentiated),
    "eval between steps": Loop(Net, evaluated_between),
    "nn.LSTM": Loop(Recurrent),
}
"""The matrix, apart from what needs two ranks."""
