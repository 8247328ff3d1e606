"""What of Dynamo's context must hold for a whole compilation."""

from __future__ import annotations

import torch
from torch._guards import TracingContext, tracing

from remat_compiler import torch_compat


class LateGuard:
    """Resets the flag when it is deleted, as torch's guard of a bucket does; part of a cycle, as frames often are."""

    def __init__(self, context: TracingContext) -> None:
        self.context, self.itself = context, self
        context.fakify_first_call = True

    def __del__(self) -> None:
        self.context.fakify_first_call = False


def test_a_bucket_stays_one_when_the_guard_of_the_last_one_is_deleted() -> None:
    import gc

    with tracing(TracingContext(torch_compat.FakeTensorMode())) as context:
        assert context is not None
        LateGuard(context)
        context.fakify_first_call = True
        torch_compat.keep_first_call_on_fakes()
        gc.collect()
        assert context.fakify_first_call


def test_other_compilations_are_left_alone() -> None:
    torch_compat.keep_first_call_on_fakes()
    with tracing(TracingContext(torch_compat.FakeTensorMode())) as context:
        assert context is not None
        torch_compat.keep_first_call_on_fakes()
        assert not context.fakify_first_call


def test_the_flag_is_known_to_this_torch() -> None:
    assert torch._guards.TracingContext(None).fakify_first_call is False
