"""Gradients from before a step, such as those that are accumulated over micro-batches: bytes of its budget.

    micro-batch 1                  micro-batch 2                                       micro-batch 3
    forward ─ backward: its own ─► forward ─ backward: its own, beside those of 1 ─►   …
                                   gradients of 1 ──────────────────── added up ────►

A plan counts the gradients that the backward makes.  Those from before are alive during the whole step beside it, since
autograd adds up both only when the backward of a graph is over.  So the graphs are planned with what they leave free,
once a backward finds them, or the schedule of a pipeline tells of further micro-batches.
Gradients that leave within a backward (`gradients`) are planned as gone from there on.  Some stay: a hook keeps them,
or autograd gets them because something else contributes to the parameter.  Where they add up, they count like gradients
from before, since a plan that has room for all of them has room for those of its own backward, too; else they are
planned as gradients that do not leave.
Gradients that the program frees between forward and backward are alive beside the forward only.  In a pipeline,
gradients of what a rank received are held until they are sent, in a later micro-batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import torch

from remat_compiler import torch_compat
from remat_compiler.log import logger_of
from remat_compiler.step_budget.beside_the_plan import WORTH_TELLING
from remat_compiler.step_model.alive import EarlierGradients
from remat_compiler.step_model.events import CallKey
from remat_compiler.units import format_bytes, told_apart

logger = logger_of(__name__)

QUIET = 4
"""Steps in a row that find no gradients, after which those of earlier steps count no more: a loop over micro-batches
finds them in all steps but its first."""
_STAY = (
    "gradients of %s stay although their parameters have hooks: a hook keeps them, or operators outside of the planned "
    "graph contribute to them; with them the step takes %s, over "
)
_STAY_OVER_BUDGET, _STAY_OVER_PLAN = f"{_STAY}memory_budget=%s; %s", f"{_STAY}its planned peak of %s; %s"
_FROM_NOW_ON, _NEVER = "later steps are planned with them", "steps whose sizes change are not planned with them"
_BESIDE_THEM = "later steps are planned beside them, if they can be"
_NOT_KNOWN = "there will be room for them once it is known which graphs make up the step"
_WAY_OUT = "if they are of a step that is over, call zero_grad before the forward"
LOOKS = 8
"""Calls of each graph with the same parameters to look at: gradients are found that add up over so many calls."""
MORE_LOOKS = 3
"""How often so many calls are looked at once more because gradients are there after all."""


@dataclass(frozen=True, slots=True)
class Shards:
    """This rank's part of the gradients of sharded modules.

    Attributes:
        group: The number of the group, see `step_model.sharding`.
    """

    group: int


Found = int | Shards
"""The identity of a leaf, or minus that of memory, or the sharded group."""


@dataclass(slots=True, eq=False)
class GradientsBefore:
    """Finds gradients from before the steps of some graphs.

    Attributes:
        peak_bytes: Peak of the graphs by themselves.
        limit_bytes: The steps' budget; `None` if it is no number of bytes.
        forward_bytes: Peak of the forward, if there is one graph; else 0.
        ask: Called when there are more of them than the graphs are planned beside, to have the budget decided about
            anew; whether it will be.
        planned_bytes: Gradients that the graphs are planned beside.
        told: Whether there was a warning.
        stays: Whether what was found counts for good: a pipeline's schedule tells of it, or it was gone once before.
        found: For each graph the most gradients that a backward of it found: bytes by the identity of their leaf, or
            by their `Shards`.
        staying: For each graph the positions of arguments whose gradients should have left within its latest backward,
            and did not; whoever plans it again takes them out.
    """

    peak_bytes: int
    limit_bytes: int | None
    forward_bytes: int
    ask: Callable[[], bool]
    planned_bytes: int = 0
    told: bool = False
    stays: bool = False
    found: dict[Hashable, Mapping[Found, int]] = field(default_factory=dict)
    staying: dict[Hashable, set[int]] = field(default_factory=dict)
    _leaves: dict[Hashable, dict[int, ref[torch.Tensor]]] = field(default_factory=dict)
    _made: dict[Hashable, torch_compat.WatchedSizes] = field(default_factory=dict)
    _at_begin: dict[Found, int] = field(default_factory=dict)
    _looks: dict[Hashable, int] = field(default_factory=dict)
    _more_looks: int = MORE_LOOKS
    _quiet: int = 0
    _told_of_first: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes of the gradients that the backwards found so far."""
        return bytes_of(self.found.values())

    def look(
        self,
        graph: Hashable,
        arguments: Sequence[Any],
        *,
        begins: bool,
        leaving: Collection[int] = (),
        plans_again: bool = True,
    ) -> torch_compat.BackwardBegins | None:
        """Look at a call of one of the graphs, after its forward.

        Args:
            graph: The graph.
            arguments: Its arguments: the leaves among them get gradients.
            leaving: Positions of those whose gradients are planned to leave within the backward.
            begins: Whether the call begins a step: gradients that come later are those of the step itself.
            plans_again: Whether the graph is planned again if some of those do not leave.

        Returns:
            What to call once the backward of this call begins; `None` if calls are not to be looked at any more.
        """
        tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
        # One graph may serve many modules in a step.
        module = graph, next((id(x) for x in tensors if isinstance(x, torch.nn.Parameter) and x.requires_grad), None)
        looks = self._looks[module] = self._looks.get(module, 0) + 1
        if looks > LOOKS:
            return None
        # Leaves of earlier calls stay: there may be gradients of inputs that the caller still holds.
        leaves = self._leaves.setdefault(graph, {})
        leaves.update((id(x), ref(x)) for x in tensors if x.is_leaf and x.requires_grad)
        if begins:
            self._at_begin = {one: size for of in self._leaves for one, size in self._there(of).items()}
            self._quiet += 1

        def backward_begins() -> Callable[[Any], None]:
            there = {one: size for one, size in self._there(graph).items() if one in self._at_begin}
            if there:
                self._quiet = 0
            # The first call after `zero_grad` finds none, or fewer.
            if sum(there.values()) > bytes_of([self.found.get(graph, {})]):
                self.found[graph] = there
            self._decide(0 if there else sum(self._at_begin.values()))
            return made

        # Those of parameters are accumulated in `grad`, or are the program's own, like any tensor that it holds.
        parameters = {i for i, value in enumerate(arguments) if isinstance(value, torch.nn.Parameter)}
        # Where gradients add up, only hooks are to let go of them.
        adds_up = bool(self.found.get(graph) or self.planned_bytes)
        handed_over = {i: ref(arguments[i]) for i in leaving if not adds_up or arguments[i]._post_accumulate_grad_hooks}

        places = len(arguments)

        def made(gradients: Any) -> None:
            # AOTAutograd takes inputs that alias each other for one, if one is changed: then no place is that of an
            # argument, and no gradient leaves.
            if len(gradients) < places:
                return
            self._see_stay(graph, {i: (one(), gradients[i]) for i, one in handed_over.items()}, plans_again)
            ours = [value for i, value in enumerate(gradients) if i not in parameters]
            self._made[graph] = torch_compat.watched_sizes(ours)

        return backward_begins

    def _see_stay(
        self,
        graph: Hashable,
        left: Mapping[int, tuple[torch.Tensor | None, torch.Tensor | None]],
        plans_again: bool,
    ) -> None:
        """Count the gradients that should have left: each given by its leaf, and the gradient that autograd gets."""
        stay: dict[Found, int] = {}
        positions: set[int] = set()
        for position, (leaf, returned) in left.items():
            gradient = returned if returned is not None or leaf is None else leaf.grad
            if gradient is not None:
                stay[id(leaf)] = torch_compat.num_bytes(gradient)
                positions.add(position)
        if not stay:
            return
        self._quiet = 0
        if not self.found.get(graph):
            self.staying[graph] = positions
            why, size = _FROM_NOW_ON if plans_again else _NEVER, bytes_of([stay])
            if self.limit_bytes is not None:
                self.say(self.peak_bytes, size, self.limit_bytes, why=why, text=_STAY_OVER_BUDGET)
            elif not plans_again and size > WORTH_TELLING * self.peak_bytes:
                self.say(self.peak_bytes, size, self.peak_bytes, why=why, text=_STAY_OVER_PLAN)
        elif bytes_of([stay]) > bytes_of([self.found[graph]]):
            self.found[graph] = stay
            if self.size_bytes > self.planned_bytes and not self.ask() and self.limit_bytes is not None:
                self.say(self.peak_bytes, self.size_bytes, self.limit_bytes, why=_NOT_KNOWN, text=_STAY_OVER_BUDGET)

    def appear(self, graph: Hashable) -> bool:
        """Whether a backward that begins finds a gradient though none was found so far; then calls are looked at anew.

        Programs may begin to accumulate gradients when nothing is looked for any more.
        """
        first = next(iter(self._leaves.get(graph, {}).values()), None)
        leaf = None if first is None else first()
        if leaf is None or leaf.grad is None or self.found or not self._more_looks:
            return False
        # Not while calls are looked at anyway.
        if max(self._looks.values(), default=0) <= LOOKS:
            return False
        self._more_looks -= 1
        self._looks.clear()
        return True

    def expect(self, graph: Hashable, arguments: Iterable[Any]) -> None:
        """Count the gradients that a call will leave, if micro-batches of a pipeline follow, each a step of its own."""
        pipeline = torch_compat.pipeline_now()
        if pipeline is None or pipeline.forwards > 1 or not pipeline.gradient_bytes:
            return
        leaves = (x for x in arguments if isinstance(x, torch.Tensor) and x.is_leaf and x.requires_grad)
        self.found[graph] = {id(leaf): torch_compat.num_bytes(leaf) for leaf in leaves}
        self.stays = True

    def _decide(self, beside_forward: int) -> None:
        if self._quiet > QUIET and self.found and not self.stays:
            # Once only: plans must not change to and fro where gradients are there in few of the steps.
            self.stays = True
            self.found.clear()
            if self.planned_bytes:
                self.ask()
        elif self.size_bytes > self.planned_bytes:
            asked, told = self.ask(), self.told
            if self.limit_bytes is not None and not (asked and self._told_of_first):
                # This step has them beside its plan in any case.
                self.say(self.peak_bytes, self.size_bytes, self.limit_bytes, why=_BESIDE_THEM if asked else _NOT_KNOWN)
            if asked:
                # What becomes of later steps is told by itself.
                self._told_of_first, self.told = self._told_of_first or self.told, told
        # Many programs free the gradients of a step only after the forward of the next one.
        elif self.limit_bytes is not None and self.forward_bytes and beside_forward:
            self.say(self.forward_bytes, beside_forward, self.limit_bytes, freed=True)

    def _there(self, graph: Hashable) -> dict[Found, int]:
        """Gradients for leaves of a graph, and those of inputs that its latest backward made and somebody holds."""
        leaves = [leaf for one in self._leaves[graph].values() if (leaf := one()) is not None]
        found: dict[Found, int] = {
            id(leaf): torch_compat.num_bytes(leaf.grad) for leaf in leaves if leaf.grad is not None
        }
        sharded = torch_compat.sharded_gradients({id(leaf) for leaf in leaves})
        for one, size in sharded.whole.items():
            found[one] = found.get(one, 0) + size
        found |= {Shards(group): size for group, size in sharded.shards.items()}
        own = torch_compat.storages_of(leaf.grad for leaf in leaves)
        held = ((-one.cdata, size) for one, size in self._made.get(graph, ()) if not one.expired())
        return found | {one: size for one, size in held if -one not in own}

    def take_over(self, other: GradientsBefore) -> None:
        """Take over what another object found of some of the graphs."""
        self.found.update(other.found)
        self._leaves.update(other._leaves)
        self._made.update(other._made)

    def say(
        self,
        planned_bytes: int,
        gradient_bytes: int,
        limit: int,
        *,
        freed: bool = False,
        why: str = "",
        text: str = "",
    ) -> None:
        """Warn, once, where gradients exceed the budget together with a part of the step.

        Args:
            planned_bytes: Peak of that part.
            gradient_bytes: The gradients.
            limit: The budget, or if it is no number of bytes, what is planned.
            freed: Whether they are freed after the forward, which then is that part.
            why: Why nothing is planned that takes less.
            text: The warning, with places for the bytes of gradients, of all, of `limit`, and for `why`, if the
                gradients are not from before the step.
        """
        if self.told or not gradient_bytes or planned_bytes + gradient_bytes <= limit:
            return
        self.told = True
        if text:
            figures = told_apart(planned_bytes + gradient_bytes, limit)
            logger.warning(text, format_bytes(gradient_bytes), *figures, why)
            return
        logger.warning(
            "gradients of %s are there before the step, %s: with them the %s takes %s, over memory_budget=%s; %s",
            format_bytes(gradient_bytes),
            "and are freed after its forward" if freed else "as where several backwards add up in .grad",
            "forward" if freed else "step",
            *told_apart(planned_bytes + gradient_bytes, limit),
            "free them before it, by zero_grad" if freed else f"{why}; {_WAY_OUT}",
        )


def bytes_of(found: Iterable[Mapping[Found, int]]) -> int:
    """Bytes of gradients, each counted once."""
    return sum({leaf: size for one in found for leaf, size in one.items()}.values())


def before_calls(parameters: Mapping[CallKey, frozenset[int]], found: Mapping[Found, int]) -> EarlierGradients:
    """Of the gradients that were found, those to which the calls of a step add their own.

    Args:
        parameters: The identities of the parameters of calls.
        found: Bytes of gradients.
    """
    users = Counter(one for of in parameters.values() for one in of)
    # Where calls of several kinds share a parameter, its gradient is added only once all of them have run.
    whole = {key: sum(found.get(one, 0) for one in of if users[one] == 1) for key, of in parameters.items()}
    return EarlierGradients(whole, {of.group: size for of, size in found.items() if isinstance(of, Shards)})
