"""What sharded data parallelism (FSDP2) takes around the graphs of a step: gathered parameters, gradients on their way.

A module's parameters are gathered before its forward and before its backward, and its gradients scattered afterwards;
torch does so between the graphs, in steps that each take memory of their own:

    gather: flat ─┐                                                        ┌─ scatter: input, output
                  └─ parameters ─ forward ─ … ─ backward ─ whole gradients ┘           └─ this rank's gradients

What is alive while a graph runs was seen, since it depends on what is gathered ahead and what is kept.  What gathering
and scattering take in between follows from the bytes of the parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class ShardedGroup:
    """Parameters that are gathered and scattered together.

    Attributes:
        number: Its number in the process.
        flat_bytes: Output of the collective that gathers them; 0 with a single rank, which gathers nothing.
        copied_bytes: This rank's part in the type that is gathered, alive while the collective begins; 0 if it is kept
            in that type, and on the device.
        parameter_bytes: The whole parameters.
        gradient_bytes: Their whole gradients.
        scatter_bytes: Input of the collective that scatters the gradients.
        output_bytes: Its output.
        cast_bytes: Its output in the type of the parameters; 0 if it has that type.
        left_bytes: This rank's part of the gradients; 0 if it is moved to the host.
        filling_bytes: Most bytes beyond the whole parameters while a single rank makes them of its own; 0 with several.
    """

    number: int
    flat_bytes: int
    copied_bytes: int
    parameter_bytes: int
    gradient_bytes: int
    scatter_bytes: int
    output_bytes: int
    cast_bytes: int
    left_bytes: int
    filling_bytes: int = 0

    @property
    def scattering_bytes(self) -> int:
        """Most bytes alive once the whole gradients are gone: input and output, and a copy in the parameters' type."""
        return self.scatter_bytes + self.output_bytes + self.cast_bytes


@dataclass(frozen=True, slots=True)
class Seen:
    """What was alive when a graph had run its forward, or its backward.

    Attributes:
        own: The groups that the call's parameters belong to.
        parameter_bytes: Parameters that are gathered.
        flat_bytes: Outputs of gathers that are under way, or not let go of.
        scatter_bytes: Inputs of scatters that are not let go of.
        gathered: The groups that are gathered.
        whole: The groups whose whole gradients are there.
    """

    own: frozenset[ShardedGroup]
    parameter_bytes: int
    flat_bytes: int
    scatter_bytes: int
    gathered: frozenset[ShardedGroup]
    whole: frozenset[ShardedGroup]

    @property
    def during_bytes(self) -> int:
        """All that was alive."""
        return self.parameter_bytes + self.flat_bytes + self.scatter_bytes


@dataclass(frozen=True, slots=True)
class FirstStep:
    """What is known of the step when the first graph of a sharded module, or of a pipeline's stage, is compiled.

    Attributes:
        ahead_bytes: Most bytes that sharded modules will hold beyond what they hold now, and gradients of a stage.
        copies: Modules whose parameters take the same bytes, so that they most likely run the same graph, or calls for
            other micro-batches: as many may be alive at once.
        overlap: Whether the calls that are open already are among the copies, as micro-batches are.
    """

    ahead_bytes: int
    copies: int
    overlap: bool = False


def first_step(now: Seen, groups: Sequence[ShardedGroup]) -> FirstStep | None:
    """What is known before the first step of the graph that `now` was seen at; `None` if its module is not sharded.

    Args:
        now: What was seen just before its first forward.
        groups: The groups of all sharded modules.
    """
    if not now.own:
        return None

    def sizes(group: ShardedGroup) -> tuple[int, int, int]:
        return group.parameter_bytes, group.gradient_bytes, group.scatter_bytes

    own = {sizes(group) for group in now.own}
    flat_bytes = max(group.flat_bytes for group in groups)
    scatter_bytes = max(group.scatter_bytes for group in groups)
    ahead_bytes = max(flat_bytes - now.flat_bytes, 0) + scatter_bytes
    return FirstStep(ahead_bytes, sum(sizes(group) in own for group in groups))


@dataclass(frozen=True, slots=True)
class Scatter(Generic[Key]):
    """The gradients of a group are scattered.

    Attributes:
        group: The group.
        of: The runs that made its gradients.
        beside_bytes: Bytes alive meanwhile apart from gradients, from what graphs hold, and from the scatter itself.
    """

    group: ShardedGroup
    of: tuple[Key, ...]
    beside_bytes: int


@dataclass(frozen=True, slots=True)
class Around(Generic[Key]):
    """What is alive around the runs of a step, in their order.

    Attributes:
        during_bytes: For each run, bytes alive while it runs.
        before_bytes: For each run, most bytes alive just before it, while parameters are gathered.
        scatters: For each run the scatters just before it; the last entry has those after all runs.
    """

    during_bytes: Mapping[int, int] = field(default_factory=dict)
    before_bytes: Mapping[int, int] = field(default_factory=dict)
    scatters: Mapping[int, Sequence[Scatter[Key]]] = field(default_factory=dict)


def around_of(runs: Sequence[Key], seen: Mapping[Key, Seen], backwards: Collection[Key]) -> Around[Key]:
    """What is alive around the runs of a step.

    Args:
        runs: The forwards and backwards, in order.
        seen: What was seen at each of them.
        backwards: Those that are backwards.
    """
    if not seen:
        return Around()
    during: dict[int, int] = {}
    before: dict[int, int] = {}
    previous, was_backward = Seen(frozenset(), 0, 0, 0, frozenset(), frozenset()), False
    for position, run in enumerate(runs):
        now = seen.get(run)
        if now is not None:
            backward = run in backwards
            during[position] = now.during_bytes
            before[position] = _gathering_bytes(previous, now, backward=backward, turns=backward and not was_backward)
            previous, was_backward = now, backward
    found: dict[int, list[Scatter[Key]]] = {}
    for position, scatter in _scatters(runs, seen, backwards):
        found.setdefault(position, []).append(scatter)
    return Around(during, before, found)


def scattered_at_once(runs: Sequence[Key], seen: Mapping[Key, Seen], backwards: Collection[Key]) -> dict[Key, Seen]:
    """What is seen where gradients that were seen to stay whole are scattered, as those of the last micro-batch are.

    Args:
        runs: The forwards and backwards, in order.
        seen: What was seen at each of them.
        backwards: Those that are backwards.
    """
    found: dict[Key, Seen] = {}
    scatter_bytes = 0
    for run in runs:
        now = seen.get(run)
        if now is None:
            continue
        found[run] = replace(now, whole=frozenset(), scatter_bytes=max(now.scatter_bytes, scatter_bytes))
        if run in backwards:
            # Alive until the next gradients are scattered.
            scatter_bytes = max((group.scatter_bytes for group in now.own), default=0)
    return found


def _gathering_bytes(previous: Seen, now: Seen, *, backward: bool, turns: bool) -> int:
    """Most bytes alive between two runs while parameters are gathered; with `turns`, a backward follows a forward."""
    new = now.gathered - previous.gathered
    own = new & now.own
    flat_bytes = sum(group.flat_bytes for group in own)
    own_bytes = sum(group.parameter_bytes for group in own)
    copied_bytes = max((group.copied_bytes for group in now.own), default=0)
    # The last forward's parameters may have been let go of before its backward, where nothing runs in between.
    filled = own | (now.own & previous.own) if turns else own
    filling_bytes = max((group.filling_bytes for group in filled), default=0)
    if backward:
        # Gathered ahead, and copied out only here; then the next ones are gathered ahead.
        more_bytes = max(flat_bytes, now.flat_bytes + copied_bytes, filling_bytes)
        return now.parameter_bytes + now.scatter_bytes + more_bytes
    # What the forward gathered last is let go of only when the next parameters are copied out.
    last_bytes = max([previous.flat_bytes, *(group.flat_bytes for group in new - own)])
    # The own ones come last.
    begun_bytes = max([copied_bytes, *(group.filling_bytes for group in new - own)]) - own_bytes
    return now.parameter_bytes + now.scatter_bytes + last_bytes + flat_bytes + max(begun_bytes, filling_bytes, 0)


def _scatters(
    runs: Sequence[Key], seen: Mapping[Key, Seen], backwards: Collection[Key]
) -> Iterator[tuple[int, Scatter[Key]]]:
    """Each scatter, with the position of the run before which it happens."""
    made: dict[ShardedGroup, list[Key]] = {}
    last: Seen | None = None
    for position, run in enumerate(runs):
        now = seen.get(run)
        if now is None:
            continue
        # Whole gradients that are gone by now were scattered since the last run.
        for group in [group for group in made if group not in now.whole]:
            assert last is not None, "a run made the gradients"
            older_bytes = max(now.scatter_bytes - group.scatter_bytes, 0)
            yield position, Scatter(group, tuple(made.pop(group)), _beside_bytes(last, group) + older_bytes)
        if run in backwards:
            for group in sorted(now.own, key=lambda group: group.number):
                made.setdefault(group, []).append(run)
        last = now
    for group, of in made.items():
        assert last is not None, "a run made the gradients"
        yield len(runs), Scatter(group, tuple(of), _beside_bytes(last, group))


def _beside_bytes(last: Seen, group: ShardedGroup) -> int:
    """Bytes alive while `group` is scattered: first its parameters are let go of."""
    own_bytes = group.parameter_bytes if group in last.gathered else 0
    return last.parameter_bytes - own_bytes + last.flat_bytes
