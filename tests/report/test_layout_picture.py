"""The picture of layouts: well-formed, every block in its place, and each in the color of what it holds."""

from __future__ import annotations

from random import Random
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from builders import generators, problems, random_steps
from planned import problem, result
from remat_compiler.ir.graph import StorageKind
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.report.layout_picture import BlockKind, DrawnBlock, DrawnLayout, block_kind, layout_svg
from remat_compiler.simulate.lives import owned_lives
from remat_compiler.simulate.timeline import simulate

RECT = "{http://www.w3.org/2000/svg}rect"
TEXT = "{http://www.w3.org/2000/svg}text"


def drawn(asked: RematProblem, plan: Plan) -> DrawnLayout:
    """All allocations of a plan, one above the other."""
    offset, blocks = 0, []
    for one in owned_lives(asked, plan):
        stop = len(plan.steps) if one.life.freed is None else one.life.freed
        kind = block_kind(asked, plan, one)
        blocks.append(DrawnBlock(one.life.made, stop, offset, one.life.size_bytes, kind))
        offset += one.life.size_bytes
    return DrawnLayout("above each other", offset, tuple(blocks))


@given(asked=problems(), rng=generators(), repeats=st.integers(0, 10))
def test_every_block_is_drawn_within_the_picture(asked: RematProblem, rng: Random, repeats: int) -> None:
    plan = random_steps(rng, asked, repeats)
    layout = drawn(asked, plan)
    root = ElementTree.fromstring(layout_svg("a <step>", plan, layout.total_bytes, [layout, layout]))
    rects = [{key: float(one.get(key) or 0) for key in ("x", "y", "width", "height")} for one in root.iter(RECT)]
    # Behind the blocks: the paper, five colors of the legend, and what each layout takes.
    assert len(rects) == 2 * len(layout.blocks) + 1 + 5 + 2
    width, height = float(root.get("width") or 0), float(root.get("height") or 0)
    for one in rects:
        assert min(one["x"], one["y"]) >= 0
        assert one["x"] + one["width"] <= width + 0.1
        assert one["y"] + one["height"] <= height + 0.1


def test_the_colors_say_what_became_of_each_value() -> None:
    asked, plan = problem(), result().plan
    assert plan is not None
    kinds = {(one.storage, one.life.made): block_kind(asked, plan, one) for one in owned_lives(asked, plan)}
    graph = asked.graph
    made_first = graph.ops[plan.steps[0]].writes[0]
    assert kinds[made_first, 0] is BlockKind.TEMPORARY
    assert kinds[made_first, 6] is BlockKind.RECOMPUTED
    alive = simulate(graph, asked.costs, plan).live_at(plan.boundary)
    saved = {storage for (storage, made), kind in kinds.items() if kind is BlockKind.SAVED}
    assert saved
    assert saved <= set(alive)
    gradients = {storage for (storage, _), kind in kinds.items() if kind is BlockKind.GRADIENT}
    assert all(
        graph.storages[s].kind in (StorageKind.GRADIENT, StorageKind.TANGENT) for s in gradients if s is not None
    )


def test_an_empty_step_has_a_picture() -> None:
    words = [
        one.text
        for one in ElementTree.fromstring(layout_svg("nothing", Plan((), 0), 0, [DrawnLayout("empty", 0, ())])).iter(
            TEXT
        )
    ]
    assert {"nothing", "0 B, 0.0 % more than is ever alive"} <= set(words)
