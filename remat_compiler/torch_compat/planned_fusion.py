"""Which loops Inductor may fuse in a planned graph: none whose fusion would hold more than the plan does.

A fused loop allocates all its results before it runs, and what any of its parts reads is freed behind it:

    planned     a: reads x, writes y | x is freed | b: reads c, writes z      at most x+y+c or y+c+z
    fused       a and b: read x and c, write y and z                          x+y+c+z

So two loops are fused only where those bytes still fit beside what is alive around them.  For the same reason, loops
share a C++ function only where they fit: it allocates the results of all its loops before it runs.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, cast

from torch._inductor.choices import InductorChoices
from torch._inductor.scheduler import NopKernelSchedulerNode
from torch._inductor.virtualized import V

from remat_compiler.torch_compat.buffer_lives import Lives
from remat_compiler.torch_compat.patches import LOOP_FUSION
from remat_compiler.torch_compat.patching import original

SHARED = 0.9
"""Part of the graph's planned peak up to which loops share a function.

The rest is for what buffers do not tell, as when inputs end."""

# By thread: other threads compile unplanned graphs meanwhile.
_planned = threading.local()


@dataclass(frozen=True, slots=True)
class FusionLimit:
    """The bytes that loops may hold.

    Attributes:
        peak_bytes: Most bytes that may be alive while fused loops run.
        sizes: Name and number of each symbolic size at which that is so.
    """

    peak_bytes: int
    sizes: tuple[tuple[str, int], ...]


def limit_fusion(limit: FusionLimit | None) -> None:
    """Set the limit for the graphs that this thread compiles from now on; `None` where nothing is planned."""
    _planned.limit = limit


def is_fusion_limited() -> bool:
    """Whether this thread compiles planned graphs."""
    return getattr(_planned, "limit", None) is not None


def planned_choices() -> InductorChoices:
    """The user's choices of how to fuse, which for planned graphs are fewer."""
    made: InductorChoices = _planned_choices(cast("Hashable", type(V.choices)))()
    return made


def frees_too_late(scheduler: Any) -> bool:
    """Whether the next loop, in one C++ function with those before it, would not fit beside what ended in them."""
    limit: FusionLimit | None = getattr(_planned, "limit", None)
    ended = scheduler.buffer_names_to_free
    if limit is None or not ended:
        return False
    graph = PlannedGraph.of(scheduler, limit)
    following = graph.following.get(scheduler.current_node.get_name())
    # Before a kernel, and behind the last loop, the function ends anyway.
    if following is None or following.is_extern() or following.is_template():
        return False
    lives = graph.lives
    # Where Inductor asked for no pair of loops, lives are those of its final nodes, which may be named otherwise.
    if not all(loop.get_name() in lives.step for loop in following.get_nodes()):
        return True
    ended_bytes = sum(lives.size_bytes.get(name, 0) for name in ended)
    # Inductor may not find the places that results could take over in a function of several loops.
    return lives.fused_bytes(following, takes_over=False) + ended_bytes > SHARED * graph.planned_bytes


@dataclass(eq=False)
class PlannedGraph:
    """What is known of the graph of a scheduler, and kept on it: Inductor asks for every pair of loops.

    Attributes:
        scheduler: Inductor's scheduler of one planned graph.
        limit: What its loops may hold.
    """

    scheduler: Any
    limit: FusionLimit

    @classmethod
    def of(cls, scheduler: Any, limit: FusionLimit) -> PlannedGraph:
        """The one of `scheduler`."""
        found: PlannedGraph | None = getattr(scheduler, "_remat_graph", None)
        if found is None:
            found = scheduler._remat_graph = cls(scheduler, limit)
        return found

    @cached_property
    def lives(self) -> Lives:
        """The lives of its buffers, of the nodes that there are when Inductor first asks."""
        return Lives.of(self.scheduler, self.limit.sizes)

    @cached_property
    def planned_bytes(self) -> int:
        """Most bytes alive as planned."""
        # Not the limit: a function saves calls but no memory traffic, which is not worth a higher peak than the plan's,
        # and what is alive beside the graph is not known here.
        return self.lives.planned_bytes()

    @cached_property
    def following(self) -> dict[str, Any]:
        """By name of each final node but the last, the node whose code comes next."""
        # A concatenation whose parts are in place already has no code, and Inductor does not ask behind it.
        nodes = [node for node in self.scheduler.nodes if not isinstance(node, NopKernelSchedulerNode)]
        return {node.get_name(): after for node, after in pairwise(nodes)}


@cache
def _planned_choices(base: Any) -> type[InductorChoices]:
    original(LOOP_FUSION)  # raises unless it takes the arguments below

    class PlannedChoices(base):  # type: ignore[misc]
        @staticmethod
        def can_fuse(scheduler: Any, node1: Any, node2: Any, shared_data_score: int) -> bool:
            limit: FusionLimit | None = getattr(_planned, "limit", None)
            if limit is None:
                return bool(base.can_fuse(scheduler, node1, node2, shared_data_score))
            lives = PlannedGraph.of(scheduler, limit).lives
            # A loop that is fused across a kernel runs before or after it, and holds there what the plan frees on the
            # other side.
            if lives.kernel_between(node1, node2) or not base.can_fuse(scheduler, node1, node2, shared_data_score):
                return False
            return lives.fit(limit.peak_bytes, node1, node2)

    return PlannedChoices
