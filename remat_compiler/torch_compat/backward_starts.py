"""The begin of each backward: its roots are known, and the nodes behind them hold all that they saved."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from remat_compiler.torch_compat.fake_tensors import active_fake_mode
from remat_compiler.torch_compat.patches import BACKWARD_STARTS
from remat_compiler.torch_compat.patching import replace
from remat_compiler.torch_compat.profiler import deltas_beside_marks, profiler_is_running

Roots = Sequence[Any]
"""What a backward begins at: tensors or edges of autograd's graph."""


@dataclass(slots=True, eq=False)
class RunningBackward:
    """A backward that is running.

    Attributes:
        roots: What it begins at.
        accumulates: Whether all that it does is to add gradients to all leaves that it comes to: it was neither asked
            for certain ones, nor to be differentiated itself.
        reached: What it runs over, once somebody asked, see `leaving.reached`.
        serving: What `leaving` knows of nodes of compiled graphs in it, by identity.
        served: Leaves whose gradients were handed over, with their hooks, which autograd would call again.
        measured: Whether its memory is recorded, for which compiled graphs mark where they run.
    """

    roots: Roots
    accumulates: bool
    reached: Any = None
    serving: dict[int, Any] = field(default_factory=dict)
    served: list[tuple[torch.Tensor, Any]] = field(default_factory=list)
    measured: bool = False

    def end(self) -> None:
        """Give back their hooks to the leaves that were served."""
        for leaf, hooks in self.served:
            # Of those that were added meanwhile, too.
            hooks.update(leaf._post_accumulate_grad_hooks)
            leaf._post_accumulate_grad_hooks = hooks


_running: list[RunningBackward] = []
Ends = Callable[[int, int], None]
"""Called after a backward, with the most bytes that it took of a CPU's memory in front of its first compiled graph, and
behind its last one, each beyond what was there then."""


def running_backwards() -> Sequence[RunningBackward]:
    """The backwards that are running, those of other threads included; the latest to begin is the last."""
    return tuple(_running)


def follow_backward_starts(starts: Callable[[Roots, Sequence[Roots]], Ends | None]) -> None:
    """Have `starts` called before each backward of the program from now on.

    Args:
        starts: Gets the roots of the backward, and those of the backwards that are running already, within one of which
            this one may begin; if it gives something back, the backward is measured for that.
    """

    def following(original: Callable[..., Any]) -> Callable[..., Any]:
        def run_backward(t_outputs: Roots, *args: Any, **keywords: Any) -> Any:
            running, ends = RunningBackward(t_outputs, _accumulates(*args, **keywords)), None
            # Backwards that a compilation traces, or runs on fake tensors, are none of the program's.
            if torch._guards.TracingContext.try_get() is None and active_fake_mode() is None:
                within = torch._C._current_graph_task_id() != -1
                ends = starts(t_outputs, [one.roots for one in _running] if within else ())
            _running.append(running)
            try:
                if ends is None or profiler_is_running() or not _on_cpu(t_outputs):
                    return original(t_outputs, *args, **keywords)
                running.measured = True
                first, last, result = deltas_beside_marks(lambda: original(t_outputs, *args, **keywords))
                ends(*(max(itertools.accumulate(deltas), default=0) for deltas in (first, last)))
                return result
            finally:
                # Another thread may have added its own meanwhile.
                _running.remove(running)
                running.end()

        return run_backward

    replace(BACKWARD_STARTS, following)


def _on_cpu(roots: Roots) -> bool:
    return all(isinstance(root, torch.Tensor) and root.device.type == "cpu" for root in roots)


def _accumulates(
    grad_tensors: Any = (),
    keep_graph: bool = False,
    create_graph: bool = False,
    inputs: Sequence[Any] = (),
    allow_unreachable: bool = True,
    accumulate_grad: bool = True,
) -> bool:
    """Whether a backward of these arguments of the engine adds gradients to all leaves, and does nothing else."""
    return accumulate_grad and not create_graph and not inputs


def nodes_behind(node: Any, roots: Roots) -> int:
    """How many nodes of autograd were made from `node` to the latest of `roots`, roughly."""
    return max((int(root._sequence_nr()) for root in nodes_of(roots)), default=0) - int(node._sequence_nr())


def nodes_of(roots: Roots) -> list[Any]:
    """The nodes of autograd at which a backward begins."""
    nodes = [root.grad_fn if isinstance(root, torch.Tensor) else root.node for root in roots]
    return [node for node in nodes if node is not None]
