"""A plan that moves values off the device is not executed as if it did not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from builders import chain
from remat_compiler.capture.graph import CapturedGraph
from remat_compiler.errors import Unplannable
from remat_compiler.ir.graph import StorageId
from remat_compiler.ir.plan import Plan, Transfer
from remat_compiler.rewrite.lower import lower


def test_a_plan_with_transfers_is_refused_by_the_name_of_what_it_moves() -> None:
    graph = chain(4).graph
    moved = Transfer(StorageId(1), 1, 3)
    plan = Plan(Plan.saving_all(graph).steps, 4, (moved,))
    with pytest.raises(Unplannable, match=graph.storages[1].name):
        lower(cast("CapturedGraph", SimpleNamespace(graph=graph)), plan)
