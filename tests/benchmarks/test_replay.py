"""Two revisions on the same questions: verdicts, sums, files of other formats, and revisions that cannot answer."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import replay
from instruments.make_instances import instance_paths
from instruments.problem_file import pack, read_problem, unpack
from instruments.replay_rows import Answer, Change, lines, plot, read_changes, summary, write_changes
from instruments.replay_worker import fitted, read
from remat_compiler.ir.codec import encode
from remat_compiler.ir.plan import PlanStatus
from remat_compiler.ir.problem import RematProblem
from remat_passes.planning.chen_sqrt import ChenSqrt

(CHAIN,) = instance_paths("chain_uniform_small")
OVER = "over"


def answer(added_ns: int, peak_bytes: int = 90, digest: str = "a", status: str = "fits", note: str = "") -> Answer:
    return Answer(status, peak_bytes, added_ns, digest, 0.5, note)


def change(old: Answer, new: Answer, instance: str = "graph") -> Change:
    return Change(instance, 10, 1000, 100, old, new)


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (answer(5), replace(answer(5), seconds=9.0), "same plan"),
        (answer(5), answer(5, digest="b"), "equal"),
        (answer(5), answer(4, digest="b"), "better"),
        (answer(5), answer(6, digest="b"), "worse"),
        (answer(5), answer(1, 120, "b", OVER), "worse"),
        (answer(9, 130, "b", OVER), answer(11, 120, "c", OVER), "better"),
        (answer(9, 130, "b", OVER), answer(0, 0, "", "error", "broke down"), "worse"),
        (answer(0, 0, "", "error", "broke down"), answer(9, 130, "b", OVER), "better"),
        (answer(2, 90, "b", "refused", "reads too early"), answer(5), "better"),
    ],
)
def test_a_replay_judges_by_time_and_then_by_peak(old: Answer, new: Answer, verdict: str) -> None:
    assert change(old, new).verdict == verdict


def test_sums_count_only_what_both_can_plan() -> None:
    over = answer(0, 120, "c", OVER)
    changes = [change(answer(40), answer(20, digest="b")), change(answer(900), over), change(over, answer(7), "other")]
    text = "\n".join(summary(changes))
    assert "3 cases: 0 same plan, 0 equal, 2 better, 1 worse" in text
    assert "plans that fit: 2 -> 2" in text
    assert "where both fit (1): added time 0.000 -> 0.000 ms in sum (0.5000), 4.000 -> 2.000 %" in text
    assert "new/old 0.5000 by the geometric mean of 1" in text
    assert lines(changes[1]).endswith("worse")


def test_changes_survive_their_file_and_are_drawn(tmp_path: Path) -> None:
    changes = [change(answer(40), answer(20, digest="b")), change(answer(4), answer(0, 0, "", "error", "broke down"))]
    write_changes(tmp_path / "changes.json", {"revisions": ["a", "b"]}, changes)
    assert read_changes(tmp_path / "changes.json") == changes
    plot(changes, ["a", "b"], tmp_path / "changes.png")
    assert (tmp_path / "changes.png").read_bytes().startswith(b"\x89PNG")


@dataclass(frozen=True)
class OldOp:
    """As an older revision might have had it."""

    name: str
    cost: int = 7


@dataclass(frozen=True)
class OldGraph:
    """The same."""

    ops: tuple[OldOp, ...]


def test_a_file_is_fitted_to_the_data_of_another_revision() -> None:
    data = {"ops": [{"name": "a", "module": "", "traits": []}, {"name": "b", "cost": 1}]}
    assert fitted(OldGraph, data) == {"ops": [{"name": "a", "cost": 7}, {"name": "b", "cost": 1}]}
    with pytest.raises(LookupError, match="OldOp has no field for module"):
        fitted(OldGraph, {"ops": [{"name": "a", "module": "encoder"}]})
    with pytest.raises(LookupError, match="OldOp needs name"):
        fitted(OldGraph, {"ops": [{"cost": 2}]})


def test_a_file_of_this_revision_is_read_as_it_is(tmp_path: Path) -> None:
    problem = replace(read_problem(CHAIN), reference=None)
    assert read(CHAIN) == problem
    assert fitted(RematProblem, encode(problem)) == encode(problem)


def head() -> str:
    inside = subprocess.run(["git", "-C", str(replay.ROOT), "rev-parse", "HEAD"], capture_output=True, check=False)
    if inside.returncode:
        pytest.skip("not a git checkout")
    return inside.stdout.decode().strip()


def test_a_revision_replayed_against_itself_changes_nothing() -> None:
    # A planner without compiled loops, or the test would wait for them to be compiled.
    (found,) = replay.replay(head(), head(), [CHAIN], (), "chen_sqrt", budgets=(2_000_000,))
    assert found.verdict == "same plan"
    result = ChenSqrt().plan(replace(read_problem(CHAIN), reference=None, budget_bytes=2_000_000))
    assert result.status is PlanStatus.FEASIBLE
    assert (found.old.added_ns, found.old.peak_bytes, found.old.fits) == (result.added_ns, result.peak_bytes, True)


def test_budgets_stand_between_the_smallest_peak_and_no_recomputation() -> None:
    found = list(replay.replay(head(), head(), [CHAIN], (0.0, 0.5, 1.0), "chen_sqrt"))
    lowest, middle, highest = (c.budget_bytes for c in found)
    assert abs((lowest + highest) / 2 - middle) <= 1
    assert found[0].old.peak_bytes == lowest
    assert found[2].old.added_ns == 0


def test_an_instance_that_a_revision_cannot_read_is_left_out_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "damaged.json.gz"
    damaged.write_bytes(pack(unpack(CHAIN.read_bytes()).replace(b'"phase":"forward"', b'"phase":"sideward"', 1)))
    assert list(replay.replay(head(), head(), [damaged], (0.5,), "chen_sqrt")) == []
    said = capsys.readouterr().err
    assert "damaged is left out: cannot be read" in said
    assert "sideward" in said


def test_an_unknown_revision_or_planner_is_refused() -> None:
    with pytest.raises(SystemExit, match="git archive failed; name two revisions"), replay.checkout("no-such-revision"):
        pass
    with pytest.raises(SystemExit, match="unknown planner 'chain_pd'"):
        list(replay.replay(head(), head(), [CHAIN], (0.5,), "chain_pd"))
