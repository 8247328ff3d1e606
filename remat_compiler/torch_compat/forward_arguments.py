"""The arguments that AOTAutograd hands to a compiled forward, and how to run such a graph apart from the step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._inductor.output_code import CompiledFxGraph

from remat_compiler.torch_compat.patches import EMITTED_CALLABLE
from remat_compiler.torch_compat.patching import replaced_in
from remat_compiler.torch_compat.thread_flag import ThreadFlag


class _Reached(Exception):
    """The compiled forward was called: AOTAutograd's wrappers before it have run."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        super().__init__()
        self.arguments = list(arguments)


_stopping = ThreadFlag()


def stop_at_forward(arguments: Sequence[Any]) -> None:
    """Raise if this thread wants only the arguments; interpreters call it before they run anything."""
    if _stopping:
        raise _Reached(arguments)


def forward_arguments(
    compiled: Callable[..., Any], arguments: Sequence[Any], graphs: Iterable[CompiledFxGraph]
) -> list[Any]:
    """The arguments of the forward graph within `compiled` in the call ``compiled(*arguments)``.

    AOTAutograd flattens `arguments`, drops duplicates and makes views; then the call is broken off, so that neither
    the forward runs nor what comes after it (changes of buffers).  Other threads may run the graph meanwhile.

    Args:
        compiled: The callable that `compile_fx` (or `aot_autograd`) returned.
        arguments: Real arguments.
        graphs: Inductor's graphs within it, forward and backward; none for interpreters.

    Raises:
        RuntimeError: The call ended without reaching a forward.
    """
    try:
        with _stopping.set(), ExitStack() as stack:
            for graph in graphs:
                stack.enter_context(replaced_in(EMITTED_CALLABLE, graph, _stopping_first))
            compiled(*arguments)
    except _Reached as reached:
        return reached.arguments
    raise RuntimeError("the compiled graph did not call its forward")


def _stopping_first(call: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """`call`, broken off if a thread makes it that wants only the arguments."""

    def stopped(inputs: list[Any]) -> Any:
        # The field is that of the graph, which other threads call, too.
        stop_at_forward(inputs)
        return call(inputs)

    return stopped


@contextmanager
def detached_run() -> Iterator[None]:
    """Operators within the block are not recorded by autograd nor cast, and the random state is put back."""
    # Saving the state of a device would initialise it, which takes memory, so devices must be in use already.
    in_use = torch.cuda.is_available() and torch.cuda.memory_stats_as_nested_dict()
    devices = range(torch.cuda.device_count()) if in_use else ()
    with torch.random.fork_rng(devices), torch.no_grad(), torch._C._DisableAutocast():
        yield
