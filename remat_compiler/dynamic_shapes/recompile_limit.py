"""Keep Dynamo's recompile limit from letting sizes run without a budget.

If every size is compiled for itself (``dynamic=False``), Dynamo gives a function up after
``torch._dynamo.config.recompile_limit`` compilations: all other sizes would run in eager, at any peak.  So before the
last compilation, the inputs whose sizes changed so far are declared dynamic, and one graph serves all sizes that are
still to come.  If something else than the size of an input changes, there is a warning.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.log import logger_of

logger = logger_of(__name__)

MOST_FUNCTIONS = 4_096
"""Largest number of functions whose sizes are remembered."""

_shapes: defaultdict[int, list[dict[str, tuple[str, ...]]]] = defaultdict(list)
_failed: defaultdict[int, int] = defaultdict(int)
_lock = threading.Lock()


def watch_recompilations(gm: fx.GraphModule) -> None:
    """Note the sizes that Dynamo compiles for, and declare sizes dynamic before it gives the function up.

    Args:
        gm: Dynamo's graph.
    """
    compilation = torch_compat.frame_compilation()
    if compilation is None:
        return
    with _lock:
        if len(_shapes) >= MOST_FUNCTIONS and compilation.frame not in _shapes:
            _shapes.clear()
            _failed.clear()
        if compilation.earlier == 0:
            # torch._dynamo.reset counts functions anew.
            _shapes.pop(compilation.frame, None)
            _failed.pop(compilation.frame, None)
            torch_compat.forget_dynamic(compilation.frame)
        # As text: comparing symbolic sizes would put guards on them.
        seen = _shapes[compilation.frame]
        shapes = torch_compat.input_shapes(gm)
        seen.append({source: tuple(map(str, shape)) for source, shape in shapes.items()})
        changing = changed(seen)
        earlier = compilation.earlier - _failed[compilation.frame]
    left = compilation.limit - earlier - 1
    # With one compilation left, the declaration makes that one dynamic; nothing else can be done any later.
    if left == 1 and changing:
        torch_compat.make_dynamic(compilation, changing)
        logger.warning(
            "the sizes of %s changed in %d compilations of one function, and Dynamo compiles it at most %d times "
            "(torch._dynamo.config.recompile_limit): the last one will serve all other sizes; call torch.compile "
            "without dynamic=False to have that from the second size on",
            ", ".join(changing),
            earlier + 1,
            compilation.limit,
        )
    elif left == 0 and not _is_dynamic(shapes):
        logger.warning(
            "this was compilation %d of one function, the last that Dynamo makes "
            "(torch._dynamo.config.recompile_limit): a call that would need another runs in eager, and memory_budget "
            'does not hold there; TORCH_LOGS="recompiles" shows why it is compiled so often',
            compilation.limit,
        )


def compilation_failed() -> None:
    """Note that the compilation under way fails, such as for a size that no plan fits: Dynamo keeps nothing of it."""
    compilation = torch_compat.frame_compilation()
    if compilation is None:
        return
    with _lock:
        _failed[compilation.frame] += 1
        if _shapes[compilation.frame]:
            _shapes[compilation.frame].pop()


def changed(seen: list[dict[str, tuple[str, ...]]]) -> list[str]:
    """Inputs of which a size that the last compilation took as fixed differs from that of another one.

    Only compilations for the same number of dimensions are compared.

    Args:
        seen: For each compilation the shape of each input by its source; the latest last.
    """
    # Another number of dimensions cannot be served by one graph, dynamic or not.
    last = seen[-1]
    found = []
    for source, shape in last.items():
        others = [shapes[source] for shapes in seen[:-1] if source in shapes]
        if any(len(other) == len(shape) and _fixed_otherwise(shape, other) for other in others):
            found.append(source)
    return found


def _fixed_otherwise(shape: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether a fixed size in `shape` is another one in `other`, or dynamic there."""
    return any(one.isdecimal() and one != another for one, another in zip(shape, other))


def _is_dynamic(shapes: dict[str, tuple[Any, ...]]) -> bool:
    """Whether a compilation serves more than one size."""
    return any(not isinstance(n, int) for shape in shapes.values() for n in shape)
