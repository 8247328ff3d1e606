"""What two loops hold if they run as one, on made-up graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch._inductor import memory
from torch._inductor.scheduler import NopKernelSchedulerNode
from torch._inductor.virtualized import V

from remat_compiler.torch_compat.buffer_lives import Lives, Loop
from remat_compiler.torch_compat.planned_fusion import FusionLimit, PlannedGraph, frees_too_late, limit_fusion

Made = Sequence[tuple[str, str]]
"""Names that each loop reads and writes, one letter each; capital letters are inputs without an end."""


def lives_of(made: Made, size_bytes: Mapping[str, int], outputs: str = "", kernels: Sequence[int] = ()) -> Lives:
    loops = [Loop(frozenset(reads), tuple(writes)) for reads, writes in made]
    end, readers, alive = {}, {}, np.zeros(len(loops), dtype=np.int64)
    writer = {name: step for step, loop in enumerate(loops) for name in loop.writes}
    for name in size_bytes:
        readers[name] = {step for step, loop in enumerate(loops) if name in loop.reads}
        end[name] = len(loops) if name in outputs else max(readers[name], default=writer.get(name, 0))
        alive[writer.get(name, 0) : end[name] + 1] += size_bytes[name]
    return Lives({str(i): i for i in range(len(loops))}, loops, list(kernels), size_bytes, end, readers, writer, alive)


def node(*steps: int) -> Any:
    """The loops at these positions, as Inductor would give them."""
    parts = [SimpleNamespace(get_name=lambda step=step: str(step)) for step in steps]
    return SimpleNamespace(get_nodes=lambda: parts, min_order=min(steps), max_order=max(steps))


def test_two_results_are_alive_at_once_beside_what_both_read() -> None:
    # x is freed before z is made; together they hold all of it.
    lives = lives_of([("x", "y"), ("c", "z")], {"x": 100, "y": 1, "c": 10, "z": 50}, outputs="yz")
    assert lives.alive_bytes.tolist() == [111, 61]
    assert lives.fused_bytes(node(0), node(1)) == 161


def test_a_result_that_the_loops_alone_read_takes_no_memory() -> None:
    lives = lives_of([("x", "y"), ("yc", "z")], {"x": 100, "y": 7, "c": 10, "z": 50}, outputs="z")
    assert lives.fused_bytes(node(0), node(1)) == 160


def test_a_result_that_others_read_too_takes_memory() -> None:
    made = [("x", "y"), ("y", "z"), ("y", "w")]
    lives = lives_of(made, {"x": 100, "y": 7, "z": 50, "w": 1}, outputs="zw")
    assert lives.fused_bytes(node(0), node(1)) == 157


def test_a_result_lies_where_an_argument_of_the_same_size_ends() -> None:
    lives = lives_of([("x", "y"), ("yX", "z")], {"x": 100, "y": 100, "z": 100}, outputs="z")
    assert lives.fused_bytes(node(0), node(1)) == 100


def test_one_argument_gives_its_place_to_one_result_of_the_loop_that_reads_it() -> None:
    twice = lives_of([("x", "y"), ("x", "z")], {"x": 100, "y": 100, "z": 100}, outputs="yz")
    assert twice.fused_bytes(node(0), node(1)) == 200
    other = lives_of([("x", "y"), ("c", "z")], {"x": 100, "y": 1, "c": 10, "z": 100}, outputs="yz")
    assert other.fused_bytes(node(0), node(1)) == 211


def test_what_is_made_early_is_alive_beside_the_loops_between() -> None:
    made = [("a", "y"), ("b", "v"), ("vc", "w"), ("a", "z")]
    size_bytes = {"a": 1, "b": 2, "c": 3, "v": 1000, "w": 4, "y": 10, "z": 500}
    lives = lives_of(made, size_bytes, outputs="wyz")
    # All of c, v, w, y and z; a has ended by then, and b.
    assert lives.fused_bytes(node(0), node(3)) == 3 + 1000 + 4 + 10 + 500


def test_loops_wait_for_those_between_whose_results_they_read() -> None:
    made = [("a", "y"), ("b", "v"), ("vd", "z"), ("e", "w")]
    size_bytes = {"a": 100, "b": 1, "d": 1, "e": 7, "v": 50, "w": 9, "y": 2, "z": 3}
    lives = lives_of(made, size_bytes, outputs="wyz")
    # As planned, a has ended before v is made.
    assert lives.fused_bytes(node(0), node(2)) == 100 + 50 + 1 + 7 + 2 + 3
    assert lives.fused_bytes(node(0)) == lives.alive_bytes[0]
    assert lives.fit(163, node(0), node(2))
    assert not lives.fit(162, node(0), node(2))


def test_three_loops_are_one_where_two_were_fused_before() -> None:
    made = [("x", "y"), ("y", "z"), ("z", "w")]
    lives = lives_of(made, {"x": 100, "y": 7, "z": 50, "w": 20}, outputs="w")
    assert lives.fused_bytes(node(0, 1), node(2)) == 120


def test_kernels_keep_loops_apart() -> None:
    lives = lives_of([("x", "y"), ("y", "z"), ("X", "w")], {"x": 1, "y": 1, "z": 1, "w": 1}, "zw", kernels=[1])
    assert lives.kernel_between(node(0), node(2))
    assert not lives_of([("x", "y"), ("y", "z")], {"x": 1, "y": 1, "z": 1}, "z").kernel_between(node(0), node(1))


def test_templates_are_kernels_as_external_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor's own templates, as of tuned products, are no external kernels, and loops cannot cross them either."""
    monkeypatch.setattr(memory, "prepare_planning_info", lambda *_: (0, set()))
    monkeypatch.setattr(memory, "compute_memory_timeline", lambda *_: ([],))
    nodes: list[Any] = []
    for step, kind in enumerate(["loop", "extern", "loop", "template"]):
        one = node(step)
        one.get_name, one.get_outputs = lambda step=step: str(step), list
        one.read_writes = SimpleNamespace(reads=())
        one.is_extern, one.is_template = lambda kind=kind: kind == "extern", lambda kind=kind: kind == "template"
        nodes.append(one)
    scheduler = SimpleNamespace(nodes=nodes, name_to_buf={}, name_to_fused_node={})
    with V.set_graph_handler(SimpleNamespace(get_output_names=list, graph_inputs={})):  # type: ignore[arg-type]
        assert Lives.of(scheduler, ()).kernels == [1, 3]


def scheduler_of(lives: Lives, at: int, ended: str, kernels: Sequence[int] = ()) -> Any:
    """Inductor's scheduler behind the code of the loop at a position, with buffers that end in its C++ function."""
    nodes = []
    for step in range(len(lives.loops)):
        one = node(step)
        one.get_name = lambda step=step: str(step)
        # A template is a kernel of its own, too.
        one.is_extern = lambda step=step: step in kernels and step % 2 == 0
        one.is_template = lambda step=step: step in kernels and step % 2 == 1
        nodes.append(one)
    scheduler = SimpleNamespace(nodes=nodes, current_node=nodes[at], buffer_names_to_free=set(ended))
    PlannedGraph.of(scheduler, FusionLimit(1_000, ())).lives = lives
    return scheduler


@pytest.mark.parametrize(("later", "too_late"), [(63, False), (62, True)])
def test_loops_share_a_function_where_what_ended_in_it_fits_beside_the_next(later: int, too_late: bool) -> None:
    # z takes 50 beside y, c and d; x, of 100, is freed behind the function: 167 in all.
    made = [("x", "y"), ("c", "z"), ("yzd", "w")]
    size_bytes = {"x": 100, "y": 1, "c": 10, "d": 6, "z": 50, "w": 66 + later}
    lives = lives_of(made, size_bytes, outputs="w")
    assert lives.planned_bytes() == lives.alive_bytes[2] == 123 + later
    limit_fusion(FusionLimit(1_000, ()))
    try:
        assert frees_too_late(scheduler_of(lives, 0, "x", kernels=[2])) is too_late
        # Nothing has ended, a kernel ends the function, and nothing follows.
        assert not frees_too_late(scheduler_of(lives, 0, "", kernels=[2]))
        assert not frees_too_late(scheduler_of(lives, 1, "xc", kernels=[2]))
        assert not frees_too_late(scheduler_of(lives, 2, "yzd", kernels=[2]))
    finally:
        limit_fusion(None)
    assert not frees_too_late(scheduler_of(lives, 0, "x", kernels=[2])), "an unplanned graph"


class InPlace(NopKernelSchedulerNode):
    """A concatenation whose parts are in their places."""

    def __init__(self, step: int) -> None:
        self.step = step

    def get_name(self) -> str:
        return str(self.step)

    def get_nodes(self) -> Any:
        return node(self.step).get_nodes()


def test_what_fits_is_asked_of_the_next_node_that_has_code() -> None:
    """Inductor does not ask behind the others, such as the one at position 1."""
    made = [("x", "y"), ("y", ""), ("yc", "z"), ("z", "w")]
    lives = lives_of(made, {"x": 100, "y": 1, "c": 9, "z": 90, "w": 50}, outputs="w")
    scheduler = scheduler_of(lives, 0, "x")
    scheduler.nodes[1] = InPlace(1)
    limit_fusion(FusionLimit(1_000, ()))
    try:
        assert frees_too_late(scheduler)
    finally:
        limit_fusion(None)
