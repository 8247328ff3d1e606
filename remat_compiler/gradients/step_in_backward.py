"""An optimizer whose updates run within the backward, parameter by parameter, as soon as each gradient is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


def step_in_backward(
    model: nn.Module | Iterable[Tensor], make_optimizer: Callable[[list[Tensor]], torch.optim.Optimizer]
) -> torch.optim.Optimizer:
    """Update each parameter in the backward, and drop its gradient, so that gradients are never alive together.

        optimizer = remat_compiler.step_in_backward(model, lambda parameters: torch.optim.AdamW(parameters, lr=1e-4))
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
        for batch in batches:
            model(batch).backward()       # and no optimizer.step(), which would find no gradients
            scheduler.step()

    It is made of hooks alone (`Tensor.register_post_accumulate_grad_hook`), and so works in eager, too.  Graphs that
    this backend compiles run them within the backward, and plan with gradients that are gone from there on.

    Args:
        model: The module, or its parameters; those that require no gradient are left out.
        make_optimizer: Makes the optimizer of a list of parameters, in groups if need be.  It updates each parameter by
            that one's gradient and state alone, as those of `torch.optim` do but for LBFGS.

    Returns:
        The optimizer.  Its `state_dict` and learning-rate schedulers work as ever; `step` and `zero_grad` do nothing.

    Raises:
        ValueError: There is nothing to train, the optimizer has none of the parameters, or it needs a closure.

    What needs all gradients at once is refused, as they come one by one: clipping by their norm
    (`torch.nn.utils.clip_grad_norm_`) with a ValueError.  `torch.amp.GradScaler` finds no gradients to look at, and
    refuses its first step; by then, the parameters were updated by scaled gradients.  Each backward is an update: use
    no micro-batches.
    """
    import torch

    from remat_compiler import torch_compat

    given = model.parameters() if isinstance(model, torch.nn.Module) else model
    parameters = [one for one in given if one.requires_grad]
    if not parameters:
        raise ValueError("step_in_backward got no parameter that requires a gradient")
    optimizer = make_optimizer(parameters)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("step_in_backward cannot serve LBFGS, which looks at all parameters at once; use another one")
    # By their places: a state that is loaded brings groups of its own.
    owners = {one: place for place, group in enumerate(optimizer.param_groups) for one in group["params"]}
    missing = sum(one not in owners for one in parameters)
    if missing:
        raise ValueError(
            f"the optimizer has {len(parameters) - missing} of {len(parameters)} parameters: let make_optimizer take "
            "all that it is given"
        )
    torch_compat.refuse_clipping(parameters)
    for one in parameters:
        one.register_post_accumulate_grad_hook(_hook(optimizer, owners[one]))  # type: ignore[no-untyped-call]
    return optimizer


def _hook(optimizer: torch.optim.Optimizer, place: int) -> Callable[[Tensor], None]:
    def step(parameter: Tensor) -> None:
        # Autograd also calls the hooks of parameters for which no gradient came.
        if parameter.grad is None:
            return
        groups = optimizer.param_groups
        group = groups[place]
        own: dict[str, Any] = {**group, "params": [parameter]}
        # The optimizer's own update, of nothing but this parameter.
        optimizer.param_groups = [own]
        try:
            optimizer.step()
        finally:
            optimizer.param_groups = groups
        parameter.grad = None
        changed = [key for key, value in own.items() if key != "params" and value is not group[key]]
        if changed:
            raise ValueError(
                f"{type(optimizer).__name__} keeps {', '.join(changed)} for a whole group of parameters, and changes "
                "it in each step: step_in_backward can only serve optimizers that update each parameter by itself"
            )

    return step
