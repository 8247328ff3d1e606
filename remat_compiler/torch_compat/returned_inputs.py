"""Inputs that a graph changes and returns: AOTAutograd puts them where it returns what else was changed.

A graph returns new values of the inputs that are changed outside of it first, and its own results behind them.  An
input that is changed within the graph and is one of its results is put at its place among the results alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as changed
from functools import cache
from typing import Any

from torch._functorch._aot_autograd.schemas import InputAliasInfo, MutationType, OutputType

from remat_compiler.torch_compat.patches import RETURNED_INPUTS
from remat_compiler.torch_compat.patching import replace


@cache
def keep_returned_inputs() -> None:
    """Have inputs that are returned changed outside of the graph, if others are."""
    replace(RETURNED_INPUTS, _with_returned_inputs_outside)


def _with_returned_inputs_outside(finish: Callable[[Any], None]) -> Callable[[Any], None]:
    def finished(self: Any) -> None:
        inputs: list[InputAliasInfo] = self.input_info
        if any(one.mutation_type is MutationType.MUTATED_OUT_GRAPH for one in inputs):
            returned = {one.base_idx for one in self.output_info if one.output_type is OutputType.is_input}
            self.input_info = [_outside(one) if i in returned else one for i, one in enumerate(inputs)]
        finish(self)

    return finished


def _outside(one: InputAliasInfo) -> InputAliasInfo:
    """An input whose data may not be changed within the graph; one whose memory is exchanged stays as it is."""
    exchanged = one.mutates_storage_metadata or one.mutation_inductor_storage_resize
    return one if exchanged else changed(one, keep_input_mutations=False)
