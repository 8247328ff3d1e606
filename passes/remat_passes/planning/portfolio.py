"""The stages of `auto` after its quick search, with an amount of work that stands for a time limit.

Without a time limit that amount is proportional to the square of the number of operators, up to some seconds for a
thousand, and never more than the time that the training steps to come could gain.

    chain_dp  once: the planner, which is optimal on uniform chains
    greedy    once, on small graphs: the planner, which finds other plans
    hierarchical  once, on large graphs: the planner, whose many cuttings take longer than a round
    demands   once, on small graphs: narrow searches over demanded sets, see `remat_passes.exact.demand_search`
    blocks    plans of the block DP over few large blocks, with options that were searched for thoroughly
    climb     from the best of each cutting and, every second time, from the best of all; then from the best result
    regions   of the best sequence by integer programs, if there is more work than by default
    linked    last, on graphs of up to a thousand operators or so: what linked instants hold, see `search.linked_seeds`

Every stage is charged with the work that it did, or with an estimate where it cannot tell, and none is begun whose
estimate exceeds what is left.  Blocks and a climb make a round.  If there is work left, another round follows with more
work, other blocks and other random numbers, since a second search gets further than a longer one; the best sequence of
all wins.  Nothing is tried once the lower bound is met, nor after many rounds that found nothing.  Work is counted in
steps visited, or in what takes as long, never in seconds: the same problem gives the same plan on any machine, in any
run, on every rank (with integer programs, if the same solver is installed).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from remat_compiler.ir.graph import Phase
from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.planner import Planner
from remat_compiler.progress import progress
from remat_passes.bounds.lower_bound import QUICK, Bound, lower_bound_ns
from remat_passes.exact.prove import cheaper_plan
from remat_passes.exact.space import OutsideSpace
from remat_passes.moves.climb import WORK_PER_SECOND, Climber
from remat_passes.planning.chain_dp import ChainDp
from remat_passes.planning.greedy import Greedy
from remat_passes.planning.hierarchical import BLOCK_COUNTS, Hierarchical, block_plans
from remat_passes.search.exact_regions import solve_region
from remat_passes.search.linked_seeds import keep_linked_seeds
from remat_passes.search.sequence_search import SequenceSearch
from remat_passes.sequences.candidate import SequenceCandidate

USUAL_WORK, MOST_USUAL_WORK = 50, 56_000_000
"""Work for each pair of operators without a time limit, and the most of it: two to three seconds."""
LEAST_WORK = 1_500_000
"""Less work is not begun, so graphs of up to 170 operators keep their quick plan: starting would take longer."""
LINKED_OPERATOR_WORK, LINKED_SHARE = 15_000, 4
"""Work of a program of linked instants for each operator, about; they are begun within one part in so many of all."""
SEED_OPERATOR_WORK = 50_000
"""Work for their sequences for each operator, at most."""
WORTH_LINKING = 0.03
"""Part of the step that the best plan must be above the bound of single instants, for linked ones without a limit."""
SINGLE = replace(QUICK, linked=0)
"""The bound of instants by themselves."""
STEPS_TO_COME = 14_000
"""Planning takes about as long as this many training steps could gain by it, at most."""
ROUND_WORK, SHORTEST_ROUND, LONGEST_ROUND = 20_000, 5_000_000, 50_000_000
"""Work of the first round for each operator, its least and its greatest value ..."""
GROWTH = 1.5
"""... and the factor by which each round is longer than the one before."""
REGIONS_FROM = MOST_USUAL_WORK
"""Work after which regions are solved exactly."""
BLOCK_SHARE, LARGE_SHARE, LARGE = 0.25, 0.6, 4_000
"""Part of the work for the options of blocks; it is larger from `LARGE` operators on, where climbs get less far."""
BLOCK_WORK, BLOCK_OPERATOR_WORK, BLOCK_STEP_WORK = 2_500_000, 4_500, 0.6
"""Work of cutting a graph into blocks, in all and for each operator, and that of a step visited for their plans."""
REGION_SHARE, REGION_WORK, REGION_PART = 0.4, 12_000_000, 2
"""Part of the work that regions may take, and the work of a large one, without which none is begun; and one region may
take one part in so many of what is left, so that rounds follow it."""
CHAIN_WORK, CHAIN_OPERATOR_WORK = 3_000_000, 1_500
"""Work of `chain_dp`, about, in all and for each operator, without its schedules that repeat layers."""
GREEDY_WORK, GREEDY_STEP_WORK, GREEDY_OPERATORS = 7_000_000, 50, 1_500
"""Work without which `greedy` is not begun, that of each of its steps, and the largest graph on which it is tried."""
HIERARCHY_WORK = 2_500
"""Work of `hierarchical` for each operator."""
DEMAND_WIDTHS, DEMAND_STATES = (1_000, 2_000), 300_000
"""States of each stage of the searches over demanded sets, and of all of them."""
DEMAND_WORK, DEMAND_OPERATORS = 56_000_000, 300
"""Their work, about, and the largest graph on which they are tried."""
STARTS, START_SHARE, START_IDLE = 6, 0.1, 60
"""Sequences that are climbed from at first, the part of the work for each, and zooms without improvement."""
IDLE_ROUNDS = 10
"""Rounds without improvement after which there is no other, whatever work is left: each was longer than the last."""
PROVEN = 1e-3
"""Relative gap to the lower bound at which nothing more is tried."""


def improve(search: SequenceSearch, work: int | None) -> SequenceCandidate:
    """The best entry after `work` more, or `usual_work` if it is `None`; `search` has run."""
    if work == 0:
        return search.pool[0]
    bound, linked_work = _bound(search, work)
    enough_ns = _enough_ns(search, bound)
    # By default linked instants would take longer than all else on a small graph, and find little where little is open.
    linked_above_ns = enough_ns + (int(WORTH_LINKING * search.once) if work is None else 0)
    if work is None:
        work = usual_work(len(search.g.ops), _gain_ns(search, enough_ns))
    else:
        work -= bound.work + linked_work
    with progress("improving the plan") as bar:
        left = work if _is_within(search, enough_ns) else work - _once(search, work)
        size, turn, in_regions, idle = first_round(len(search.g.ops)), 0, 0, 0
        while left > 0 and idle < IDLE_ROUNDS and not _is_within(search, enough_ns):
            given, before = min(size, left), search.rank(search.pool[0])
            search.work_left = given
            if not _round(search, turn):
                break
            left -= given - search.work_left
            if search.solved and work > REGIONS_FROM:
                done = _solve_regions(search, int(REGION_SHARE * (work - left)) - in_regions, left)
                left, in_regions = left - done, in_regions + done
            size, turn = int(GROWTH * size), turn + 1
            idle = 0 if search.rank(search.pool[0]) < before else idle + 1
            bar.advance()
        # Last, since the order of the best sequence is the one in which instants are linked.
        if linked_work and not _is_within(search, linked_above_ns):
            keep_linked_seeds(search, linked_work)
    return search.pool[0]


def _bound(search: SequenceSearch, work: int | None) -> tuple[Bound, int]:
    """The lower bound, and work that is set apart for sequences of linked instants.

    Args:
        search: The search.
        work: Work that may be done, or `None` for as much as the steps to come could gain.
    """
    # Single instants come first: they take next to no time, and tell whether linking them is worth its own.
    bound = lower_bound_ns(search.problem, SINGLE)
    operators, gain_ns = len(search.g.ops), _gain_ns(search, _enough_ns(search, bound))
    allowed = _gain_work(gain_ns) if work is None else work // LINKED_SHARE
    if operators > QUICK.linked_operators or gain_ns == 0 or allowed < LINKED_OPERATOR_WORK * operators:
        return bound, 0
    if work is None:
        return bound, min(allowed, SEED_OPERATOR_WORK * operators)
    program = replace(QUICK.program, most_work=min(allowed, QUICK.program.most_work))
    linked = lower_bound_ns(search.problem, replace(QUICK, program=program))
    return replace(linked, work=linked.work + bound.work), min(allowed, SEED_OPERATOR_WORK * operators)


def _enough_ns(search: SequenceSearch, bound: Bound) -> int:
    """Time of a step at which nothing more is tried."""
    # The bound is of added time; entries have the time of the whole step.
    return search.once + int(bound.bound_ns * (1.0 + PROVEN))


def _gain_ns(search: SequenceSearch, enough_ns: int) -> int | None:
    """Time of the best entry beyond what is proven necessary; `None` if no entry fits."""
    return max(search.pool[0].time - enough_ns, 0) if search.solved else None


def _gain_work(gain_ns: int | None) -> int:
    """Work that takes as long as the steps to come could gain, which is not known without a plan."""
    if gain_ns is None:
        return MOST_USUAL_WORK
    return max(gain_ns, 0) * STEPS_TO_COME * WORK_PER_SECOND // 10**9


def usual_work(operators: int, gain_ns: int | None) -> int:
    """Work in proportion to the possible gain.

    Args:
        operators: Operators of the graph; small ones are soon searched through.
        gain_ns: Time of the best plan so far beyond what is proven necessary; `None` without such a plan.
    """
    by_pairs = USUAL_WORK * operators**2
    if by_pairs < LEAST_WORK:
        return 0
    # Cutting into blocks comes on top, or small graphs would have no work left for the plans of blocks.
    by_size = min(by_pairs + _cutting_work(operators), MOST_USUAL_WORK)
    work = by_size if gain_ns is None else min(by_size, _gain_work(gain_ns))
    return work if work >= LEAST_WORK else 0


def _is_within(search: SequenceSearch, time_ns: int) -> bool:
    """Whether the best entry fits and takes at most `time_ns`."""
    return search.solved and search.pool[0].time <= time_ns


def _once(search: SequenceSearch, work: int) -> int:
    """Run the stages that run once, each if enough work remains for more than it; the work done."""
    # Work by estimate, since these planners do not count it; each may take a part, so that rounds remain.
    operators, done = len(search.g.ops), 0
    forward = search.index.phase.count(Phase.FORWARD)
    chain_work = CHAIN_WORK + CHAIN_OPERATOR_WORK * operators + ChainDp().persistent_work(forward)
    if work > 4 * chain_work:
        search.keep(list(_planned(search, ChainDp())))
        done += chain_work
    if work > 4 * GREEDY_WORK and operators <= GREEDY_OPERATORS:
        greedy = Greedy(min(Greedy().effort, work // (4 * GREEDY_STEP_WORK)))
        result = greedy.plan(search.problem)
        search.keep(list(_entries(search, result)))
        done += GREEDY_STEP_WORK * int(dict(result.stats)["steps"])
    hierarchy_work = HIERARCHY_WORK * operators + 2 * _cutting_work(operators)
    if operators >= LARGE and work > 4 * hierarchy_work:
        search.keep(list(_planned(search, Hierarchical(HIERARCHY_WORK))))
        done += hierarchy_work
    if work > 2 * DEMAND_WORK and operators <= DEMAND_OPERATORS and search.solved:
        search.keep(list(_demands(search)))
        done += DEMAND_WORK
    return done


def first_round(operators: int) -> int:
    """The work of the first round."""
    return min(max(ROUND_WORK * operators, SHORTEST_ROUND), LONGEST_ROUND)


def _cutting_work(operators: int) -> int:
    """Work of cutting a graph into blocks, whatever their plans take."""
    return BLOCK_WORK + BLOCK_OPERATOR_WORK * operators


def _round(search: SequenceSearch, turn: int) -> bool:
    """Blocks and a climb, as far as there is work for them; whether there was for either."""
    cutting_work, starts = _cutting_work(len(search.g.ops)), [search.pool[0]]
    if cutting_work < search.work_left:
        search.work_left -= cutting_work
        starts = _blocks(search, turn)
    elif not search.solved:
        return False
    if search.solved:
        _climb(search, starts)
    return True


def _blocks(search: SequenceSearch, turn: int) -> list[SequenceCandidate]:
    """Keep the plans of blocks; the sequences from which to climb."""
    before = search.work_left
    # Fewer and so larger blocks each time: the same blocks would give the same plans.
    counts = [max(count * 2 // (2 + turn), 2) for count in BLOCK_COUNTS]
    share = BLOCK_SHARE if len(search.g.ops) < LARGE else LARGE_SHARE
    found = list(block_plans(search, counts, share))
    search.work_left = before - int(BLOCK_STEP_WORK * (before - search.work_left))
    starts = [entries[0] for entries in found if entries]
    if turn % 2 == 0 or not any(search.fits(entry) for entry in starts):
        starts.append(search.pool[0])
    # After `starts`, so that the best of all there is the one of the rounds before.
    search.keep([entry for entries in found for entry in entries])
    return starts


def _planned(search: SequenceSearch, planner: Planner) -> Iterator[SequenceCandidate]:
    """The plan of another planner."""
    return _entries(search, planner.plan(search.problem))


def _entries(search: SequenceSearch, result: PlanResult) -> Iterator[SequenceCandidate]:
    """The trimmed plan of `result`, if it has one."""
    if result.plan is not None:
        yield search.trimmed(np.array(result.plan.steps, np.int64), result.plan.boundary)


def _demands(search: SequenceSearch) -> Iterator[SequenceCandidate]:
    """What narrow searches over demanded sets make of the best entry."""
    try:
        plan = cheaper_plan(search.problem, search.pool[0].plan(), DEMAND_WIDTHS, DEMAND_STATES)
    # The graph has something that the search does not model; other stages do.
    except OutsideSpace:
        return
    yield search.trimmed(np.array(plan.steps, np.int64), plan.boundary)


def _climb(search: SequenceSearch, found: Sequence[SequenceCandidate]) -> None:
    """Climb from the best of `found` for a while, then from the best result."""
    climber = Climber(search.g, search.budget, search.limit_ns, search.once, search.draw)
    starts: dict[tuple[int, int, int], SequenceCandidate] = {}
    for entry in found:
        if search.fits(entry):
            # Entries that agree in all three are mostly one sequence, found several times.
            starts.setdefault((entry.boundary, entry.time, entry.peak), entry)
    share, ends = int(START_SHARE * search.work_left), []
    for entry in sorted(starts.values(), key=search.rank)[:STARTS]:
        best, left = climber.run(entry, share, START_IDLE)
        search.work_left -= share - left
        ends.append(best)
    # A start that looks worse may end better, so the choice comes after the short climbs.
    best, search.work_left = climber.run(min(ends, key=search.rank), search.work_left)
    search.keep([best, *ends])


def _solve_regions(search: SequenceSearch, owed: int, left: int) -> int:
    """Solve regions of the best entry exactly; the work done.

    Args:
        search: Gets what they become.
        owed: Work for regions, which the last one may exceed.
        left: All work left, which must be enough for a large region before one is begun.
    """
    done = 0
    while done < owed and left - done >= REGION_WORK:
        best = search.pool[0]
        most = (left - done) // REGION_PART
        solved = solve_region(search.g, best, search.budget, search.limit_ns, search.draw, most)
        search.keep([solved.entry])
        done += solved.work
    return done
