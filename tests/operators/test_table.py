"""The table of operators names operators of torch, repeats nothing that torch says, and has a digest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
import torch._inductor.inductor_prims
from torch.nn.attention import flex_attention

from remat_compiler import torch_compat
from remat_compiler.costs import cuda_workspace, index_workspace
from remat_compiler.costs.calibration import SPECIAL_FLOPS
from remat_compiler.operators.row import NOTHING, Row
from remat_compiler.operators.table import NO_FACTS, TABLE, digest_of, row_of, rows_by_name

assert flex_attention  # registers its operators
HAS_RANKS = torch.distributed.is_available()
OF_RANKS = ("_c10d_functional", "c10d_functional")
BEFORE_2_15 = {"aten::cholesky"}
FUSIBLE = torch_compat.fusible_ops()
OTHER: dict[str, Any] = {"str": "other", "bool": True, "int": 7, "float | None": 7.5, "tuple[int, ...]": (7,)}
"""Another value for each type of a column."""


def rows() -> list[Row]:
    return [row for name, row in TABLE.items() if not name.endswith("*")]


def is_here(name: str) -> bool:
    namespace, _, short = name.partition("::")
    if namespace == "higher_order":
        return hasattr(torch.ops.higher_order, short)
    return bool(torch_compat.overloads_of(name))


def test_torch_has_each_operator() -> None:
    unknown = {row.names for row in rows() if not is_here(row.names)}
    if not HAS_RANKS:
        unknown = {name for name in unknown if not name.startswith(OF_RANKS)}
    assert unknown <= BEFORE_2_15


def test_each_beginning_is_that_of_an_operator() -> None:
    names = torch._C._dispatch_get_all_op_names()
    for beginning in (name.removesuffix("*") for name in TABLE if name.endswith("*")):
        assert any(name.startswith(beginning) for name in names), beginning


@pytest.mark.parametrize(("column", "forms"), [("cpu", index_workspace.FORMS), ("cuda", cuda_workspace.FORMS)])
def test_each_closed_form_is_named_and_each_name_has_one(column: str, forms: dict[str, Any]) -> None:
    named = {getattr(row, column) for row in TABLE.values()} - {"", NOTHING}
    assert named == set(forms)


def test_no_row_says_what_torch_says() -> None:
    """Its schemas tell views, its tags pointwise operators, which are safe, and reductions, its partitioner others."""
    said = [f"{row.names}: {fact}" for row in rows() for fact in said_by_torch(row)]
    assert said == []


def said_by_torch(row: Row) -> Iterator[str]:
    overloads = torch_compat.overloads_of(row.names)
    functional = [one for one in overloads if not one._schema.is_mutable]
    if not overloads or not functional:
        return
    fusible = [torch.Tag.pointwise in one.tags or one.overloadpacket in FUSIBLE for one in functional]
    if row.safe and all(torch.Tag.pointwise in one.tags for one in overloads):
        yield "safe"
    if row.loop == "pointwise" and all(fusible):
        yield "pointwise"
    if row.loop == "reduction" and all(torch.Tag.reduction in one.tags for one in functional):
        yield "reduction"
    if row.loop == "view" and all(one.is_view for one in functional):
        yield "view"


def test_an_operator_has_one_row() -> None:
    with pytest.raises(ValueError, match="aten::mm has two rows"):
        rows_by_name([Row("mm bmm", safe=True), Row("aten::mm")])


def test_a_row_holds_for_forms_in_place_and_an_overload_may_have_its_own() -> None:
    assert row_of("aten::sigmoid_") is row_of("aten::sigmoid") is not NO_FACTS
    assert row_of("aten::fill_.Scalar") is not row_of("aten::fill.Scalar")
    assert row_of("aten::mul.Scalar").overwriting
    assert row_of("aten::mul.Tensor") is NO_FACTS
    assert row_of("aten::_foreach_add_.List").cuda == NOTHING
    assert row_of("elsewhere::mm") is NO_FACTS


@pytest.mark.parametrize(
    ("names", "instructions"),
    # The unit for special functions has an eighth of the lanes, and two instructions are around it; Philox takes 100.
    [("exp log log2 exp2 sin cos", 8 + 2), ("rand randn_like bernoulli native_dropout", 100), ("erf tanh", 20)],
)
def test_arithmetic_on_a_gpu_is_counted_in_instructions(names: str, instructions: int) -> None:
    for name in names.split():
        row = row_of(f"aten::{name}")
        evaluations = row.evaluations if row.gpu_evaluations is None else row.gpu_evaluations
        assert evaluations == instructions / (SPECIAL_FLOPS / 2), name


@pytest.mark.parametrize("column", [f.name for f in fields(Row) if f.name != "names"])
def test_each_fact_is_in_the_digest(column: str) -> None:
    (kind,) = (f.type for f in fields(Row) if f.name == column)
    other = OTHER["str" if str(kind).startswith("Literal") else str(kind)]
    row = TABLE["aten::sin"]
    assert getattr(row, column) != other
    changed = {**TABLE, "aten::sin": replace(row, **{column: other})}
    assert digest_of(changed) != digest_of(TABLE)


def test_the_digest_is_about_facts_and_not_about_the_order_of_rows() -> None:
    rows = [Row("mm bmm", safe=True), Row("exp", dear=True)]
    split = [Row("exp", dear=True), Row("bmm", safe=True), Row("mm", safe=True)]
    assert digest_of(rows_by_name(rows)) == digest_of(rows_by_name(split))
    assert digest_of(rows_by_name(rows)) != digest_of(rows_by_name(rows[:1]))
