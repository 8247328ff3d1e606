"""What AOTAutograd hands to a compiled forward, and how to run such a graph beside the step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._inductor.output_code import CompiledFxGraph

from remat_compiler.torch_compat.patches import EMITTED_CALLABLE
from remat_compiler.torch_compat.patching import replaced_in


class _Reached(Exception):
    """The compiled forward was called: everything of AOTAutograd's that comes before it has run."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        super().__init__()
        self.arguments = list(arguments)


_stopping = threading.local()


def stop_at_forward(arguments: Sequence[Any]) -> None:
    """To be called by interpreters with their arguments, before they run anything."""
    if getattr(_stopping, "on", False):
        raise _Reached(arguments)


def forward_arguments(
    compiled: Callable[..., Any], arguments: Sequence[Any], graphs: Iterable[CompiledFxGraph]
) -> list[Any]:
    """What the forward graph within `compiled` is called with where `compiled` is called with `arguments`.

    AOTAutograd flattens them, drops duplicates and makes views; then the call is broken off, so that neither the
    forward runs nor what comes behind it (buffers that are changed).  Other threads may run the graph meanwhile.

    Args:
        compiled: What `compile_fx` (or `aot_autograd`) returned.
        arguments: Real ones.
        graphs: What Inductor made of it, forward and backward; none where interpreters run.

    Raises:
        RuntimeError: The call ended without reaching a forward.
    """
    _stopping.on = True
    try:
        with ExitStack() as stack:
            for graph in graphs:
                stack.enter_context(replaced_in(EMITTED_CALLABLE, graph, _stopping_first))
            compiled(*arguments)
    except _Reached as reached:
        return reached.arguments
    finally:
        _stopping.on = False
    raise RuntimeError("the compiled graph did not call its forward")


def _stopping_first(call: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """`call`, broken off where this thread makes it."""

    def stopped(inputs: list[Any]) -> Any:
        stop_at_forward(inputs)
        return call(inputs)

    return stopped


@contextmanager
def beside_the_step() -> Iterator[None]:
    """What runs within the block is unknown to autograd, is not cast, and leaves the random state as it was."""
    in_use = torch.cuda.is_available() and torch.cuda.memory_stats_as_nested_dict()
    devices = range(torch.cuda.device_count()) if in_use else ()
    with torch.random.fork_rng(devices), torch.no_grad(), torch._C._DisableAutocast():
        yield
