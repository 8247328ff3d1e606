"""The text of plans."""

from __future__ import annotations

import pytest

from drawn_graphs import chain, joint_plan
from remat_compiler.ir.graph import OpId, StorageId
from remat_compiler.ir.plan import Plan, Transfer
from remat_compiler.ir.text_form import format_time, plan_text, table


def test_a_plan_as_text_marks_repetitions_and_the_boundary() -> None:
    plan = Plan((OpId(0), OpId(1), OpId(0), OpId(2), OpId(3)), 2)
    text = plan_text(chain([2048, 16]), plan, [2048, 2064, 2080, 4000, 9])
    assert (
        text
        == """\
# 5 steps, 1 of them again; the backward starts at step 2
step 0         op0 op_0  2.0 KiB  layer.0  model.py:10
step 1         op1 op_1  2.0 KiB  layer.0  model.py:11
-- backward --
step 2  again  op0 op_0  2.0 KiB  layer.0  model.py:10
step 3         op2 op_2  3.9 KiB  layer.1  model.py:12
step 4         op3 op_3      9 B  layer.1  model.py:13
"""
    )


def test_a_plan_as_text_says_where_values_leave_and_come_back() -> None:
    plan = Plan((OpId(0), OpId(1), OpId(2), OpId(3)), 2, (Transfer(StorageId(2), 1, 2),))
    assert plan_text(chain([2048, 16]), plan).splitlines()[1:] == [
        "step 0  op0 op_0  layer.0  model.py:10",
        "-- s2 f0, 2.0 KiB, goes to the host --",
        "step 1  op1 op_1  layer.0  model.py:11",
        "-- backward --",
        "-- s2 f0, 2.0 KiB, comes back --",
        "step 2  op2 op_2  layer.1  model.py:12",
        "step 3  op3 op_3  layer.1  model.py:13",
    ]


def test_a_plan_without_live_bytes_has_no_such_column() -> None:
    graph = chain([8, 16])
    assert "KiB" not in plan_text(graph, joint_plan(graph))


def test_a_table_takes_ragged_rows_and_drops_empty_columns() -> None:
    assert table([("a", "", "b"), ("cc",)]) == ["a   b", "cc"]
    assert table([("a", "1"), ("b", "22")], right=(1,)) == ["a   1", "b  22"]
    assert table([]) == []


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [(0, "0 ns"), (999, "999 ns"), (12_345, "12.3 µs"), (999_960, "1.0 ms"), (2_500_000_000, "2.50 s")],
)
def test_time_is_printed_for_people(time_ns: int, text: str) -> None:
    assert format_time(time_ns) == text
