"""The rules that a plan may break, each with the sentence that reports it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Rule(str, Enum):
    """A rule that every plan must keep; the value is the sentence that reports a breach."""

    UNKNOWN_OP = "a step names an operator that the graph does not have"
    BOUNDARY = "the boundary lies outside the plan"
    PHASE = "an operator that depends on tangents stands in the forward"
    FORWARD_MISSING = "an operator that the forward outputs need does not run in the forward"
    NOT_MADE = "a step reads a storage that no earlier step made"
    RECOMPUTE = "an operator that may not be recomputed runs twice"
    MUST_SAVE = "an operator whose results must be saved runs twice"
    EFFECT_ORDER = "an operator with effects runs behind one that the program runs later"
    EFFECT_MISSING = "an operator with effects never runs"
    CHANGED = "an operator reads memory on the other side of one that changes it"
    ENDED = "a step reads a storage after the operator that ends it"
    MISSING_OUTPUT = "a gradient or output is never made"
    SAVED = "a storage crosses the boundary although it must not be saved"
    TRANSFER_PLACE = "a transfer names steps or a storage that the plan does not have"
    TRANSFER_KIND = "a transfer moves a storage that stays on the device"
    TRANSFER_USELESS = "a transfer moves what is not there, or brings back what nobody reads"
    TRANSFER_AWAY = "a step reads or makes a storage while it is off the device"
    TRANSFER_TWICE = "a transfer moves what another one has moved already"
    TRANSFER_TIER = "a transfer moves to a tier that the problem does not offer"
    TRANSFER_ROOM = "the transfers take more memory off the device than is allowed"
    BUDGET = "the peak exceeds the budget"
    CLAIM = "the claimed peak differs from the true one"


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: the rule, the step that breaks it, and the details."""

    rule: Rule
    step: int
    detail: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.rule.value} ({self.detail})"
