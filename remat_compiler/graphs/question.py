"""The question that the compilation of a graph answers: the graph, the first request, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.compilation.compiler import Compiler
from remat_compiler.compilation.gathers import GatheringSearch
from remat_compiler.compilation.graph_key import PlanKey, devices_of, parameter_shapes, plan_key
from remat_compiler.compilation.offloading import place_of, usable_bytes
from remat_compiler.compilation.outcome import Outcome, StoredOutcome
from remat_compiler.compilation.unusual_devices import tell_of_devices
from remat_compiler.costs.table import cost_identity
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.devices.allocator_setting import segments_expand
from remat_compiler.distributed.agreement import Agreement, Alone, Point, current_agreement
from remat_compiler.distributed.by_store import StoreAgreement
from remat_compiler.dry_run.dry_run import MORE_BLOCKS_BYTES, dry_run
from remat_compiler.dry_run.fake_inputs import counted_device_type
from remat_compiler.gradients.inputs import leaving_inputs
from remat_compiler.log import logger_of
from remat_compiler.memory_budget import MemoryBudget
from remat_compiler.offload.place import Place
from remat_compiler.options import Environment, RematOptions
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.session import Session
from remat_compiler.step_budget.beside_the_plan import Untrained
from remat_compiler.step_budget.first_step import has_fixed_sizes

logger = logger_of(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """One Dynamo graph to compile.

    Attributes:
        compiler: Compiles it by a request.
        search: The search for the request to keep.
        options: The user's options.
        first: The first request.
        symbols: The symbolic sizes that it is to keep the budget at; empty to plan it for the sizes of its inputs.
        key: Everything that decides the answer.
        outcome: Reports and keeps the answer.
        earlier: What an earlier process answered; `None` if that is not known, or if sizes change.
        directory: The cache folder; `None` for none.
    """

    compiler: Compiler
    search: GatheringSearch
    options: RematOptions
    first: PartitionRequest
    symbols: tuple[torch_compat.InputSymbol, ...]
    key: PlanKey
    outcome: Outcome
    earlier: StoredOutcome | None
    directory: Path | None

    @property
    def inputs(self) -> Sequence[Any]:
        """The graph's inputs, as Dynamo gave them."""
        return self.compiler.example_inputs

    @property
    def on_gpu(self) -> bool:
        """Whether the memory of a GPU is counted."""
        return counted_device_type(self.inputs) != "cpu"

    def untrained(self, attempt: Attempt) -> Callable[..., Any]:
        """The compiled graph without gradients, watched if other graphs follow it in a step."""
        # Its results are inputs of the next graph only if there is one.
        if not torch_compat.ends_at_graph_break(self.compiler.gm):
            return attempt.compiled
        check = dry_run(attempt.compiled, self.inputs, attempt.graphs, self.compiler.session.workspace)
        return Untrained(attempt.compiled, check.peak_bytes)


def question_of(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: RematOptions, environment: Environment
) -> Question:
    """The question for Dynamo's graph."""
    directory = None if environment.disable_cache else environment.cache_dir
    agreement = _agreement()
    first = first_request(options, environment, example_inputs)
    if options.memory_budget.is_measured and first.budget_bytes is not None:
        asked = plan_key(gm, example_inputs, options, None, "")
        first = replace(first, budget_bytes=agreement.smallest(first.budget_bytes, lambda: asked.digest))
    symbols = changing_sizes(options, first, example_inputs)
    devices = devices_of(gm, example_inputs)
    tell_of_devices(devices)
    kinds = {device.type for device in devices}
    place = place_of(options, kinds)
    costs = cost_identity(options.cost_model, kinds, directory, place)
    if place is not None:
        first = _moving(first, options, place, one_plan=not symbols and not has_fixed_sizes(example_inputs))
    traced = torch_compat.symbolic_inputs(gm, example_inputs) if symbols else []
    key = plan_key(gm, traced or example_inputs, options, first.budget_bytes, costs)
    # If sizes change, one outcome says nothing of other sizes: the sizes of variants are kept instead (`VariantStore`),
    # and their plans are in the plan cache.
    workspace = WorkspaceTable(directory)
    outcome = Outcome(options, None if symbols else directory, key, workspace)
    session = Session(
        directory,
        workspace,
        parameter_shapes(gm, example_inputs),
        torch_compat.input_sources(gm),
        repr((key.options, key.versions)),
        agreement,
    )
    # The caches of ranks may differ.
    earlier = agreement.agree(Point.OUTCOME, outcome.earlier(first), lambda: key.digest)
    compiler = Compiler(gm, example_inputs, traced, session, costs, earlier is not None, options.inductor)
    return Question(compiler, _search(compiler, options), options, first, symbols, key, outcome, earlier, directory)


def first_request(options: RematOptions, environment: Environment, example_inputs: Sequence[Any]) -> PartitionRequest:
    """The first request for a graph."""
    budget = options.memory_budget
    return PartitionRequest(
        budget_bytes=_first_budget(budget, example_inputs),
        fraction=budget.part,
        take_smallest=budget.minimises or options.on_infeasible == "min",
        verify=environment.verify,
        leaving=leaving_inputs(options, example_inputs),
        # The inner compiler's own layout takes copies of weights: never the smallest peak.
        free_layout=not budget.minimises,
        **options.of_plans,
    )


def changing_sizes(
    options: RematOptions, request: PartitionRequest, example_inputs: Sequence[Any]
) -> tuple[torch_compat.InputSymbol, ...]:
    """The symbolic sizes that variants of the graph are to serve: all of them under a budget in bytes, else none.

    A fraction of the peak without a budget grows with the sizes; one plan has about the same fraction at all of them.
    """
    limited = request.budget_bytes is not None and not options.memory_budget.minimises
    return torch_compat.input_symbols(example_inputs) if limited else ()


def _first_budget(budget: MemoryBudget, example_inputs: Sequence[Any]) -> int | None:
    if budget.minimises:
        return 1  # no plan fits, so planners answer with their smallest peak
    return torch_compat.free_device_bytes(example_inputs) if budget.is_measured else budget.named_bytes


def _moving(request: PartitionRequest, options: RematOptions, place: Place, *, one_plan: bool) -> PartitionRequest:
    """The request for plans that may move values to `place`.

    Args:
        request: The request for plans that move nothing.
        options: The user's options.
        place: Where values go.
        one_plan: Whether one plan serves all sizes: larger ones would move more than there is room for.
    """
    if not one_plan:
        return replace(request, offload_bytes=usable_bytes(place, options.offload_budget), offload_place=str(place))
    logger.warning(
        "offload_budget has no effect on a graph whose sizes change under memory_budget=%s: nothing is moved off the "
        'device; name bytes, such as "6GiB"',
        options.memory_budget,
    )
    return request


def _search(compiler: Compiler, options: RematOptions) -> GatheringSearch:
    """The search for the request to keep."""
    inputs, session = compiler.example_inputs, compiler.session
    chooses_layout = torch_compat.has_convolutions(compiler.gm) or torch_compat.may_pad_products(compiler.gm)
    trains = torch_compat.needs_gradients(inputs)
    in_blocks = counted_device_type(inputs) == "cuda" and not segments_expand()
    more_bytes = MORE_BLOCKS_BYTES if in_blocks else 0
    agreement = session.agreement.gathers
    return GatheringSearch(compiler.run, options, chooses_layout, trains, more_bytes, agreement, session.program)


def _agreement() -> Agreement:
    """How the ranks of this job come to the same plans."""
    given, ranks = current_agreement(), torch_compat.ranks()
    if given is not None:
        return given
    return Alone() if ranks is None else _by_store(ranks)


@lru_cache(maxsize=1)
def _by_store(ranks: torch_compat.Ranks) -> StoreAgreement:
    """One for all graphs of a job: it remembers whom it waited for in vain."""
    return StoreAgreement(ranks.store, ranks.rank, ranks.size, torch.__version__)
