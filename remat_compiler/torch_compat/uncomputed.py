"""A tensor that stands for a result that was not computed: it has a type and sizes, and refuses to be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from remat_compiler.torch_compat.fake_tensors import FAKE_RUN_ERRORS, FakeTensorMode

Refusal = Callable[[str], Exception]
"""Makes the error for who reads a result, of the words for it."""


class Uncomputed(Tensor):
    """Stands for a result that was not computed.

    What is made of such tensors alone, as by a cast or a view, stands for a result, too.  Whatever needs elements
    raises: a number of it, a copy of it, or an operator with other tensors.  It needs no gradient.
    """

    fake: Tensor
    refusal: Callable[[], Exception]

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, fake: Tensor, refusal: Callable[[], Exception]) -> Uncomputed:
        """Stand for the value of a fake tensor.

        Args:
            fake: Its type, sizes and device.
            refusal: Makes the error for who reads it.
        """
        made: Uncomputed = Tensor._make_wrapper_subclass(
            cls, fake.shape, strides=fake.stride(), dtype=fake.dtype, device=fake.device
        )
        made.fake, made.refusal = fake, refusal
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator on what is known of its arguments, if all of them were not computed."""
        given = (args, kwargs or {})
        tensors = [one for one in pytree.tree_leaves(given) if isinstance(one, Tensor)]
        refusal = next(one.refusal for one in tensors if isinstance(one, Uncomputed))
        if not all(isinstance(one, Uncomputed) for one in tensors):
            raise refusal()
        fake_args, fake_kwargs = pytree.tree_map_only(Uncomputed, lambda one: one.fake, given)
        try:
            with _mode():
                result = func(*fake_args, **fake_kwargs)
        except FAKE_RUN_ERRORS as error:
            raise refusal() from error
        return pytree.tree_map_only(Tensor, lambda one: Uncomputed(one, refusal), result)

    def _refuse(self, *_: object, **__: object) -> Any:
        raise self.refusal()

    # What torch's own classes read without an operator, or refuse in words of their own.
    backward = numpy = tolist = __array__ = __reduce_ex__ = _refuse

    def __deepcopy__(self, memo: object) -> Uncomputed:
        return self

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Uncomputed({self.dtype}, {list(self.shape)}, device='{self.device}')"


def uncomputed(sizes: Sequence[int], like: Tensor, refusal: Refusal) -> Uncomputed:
    """A tensor that was not computed, of these sizes, and of the type and device of another."""
    with _mode():
        fake = torch.empty(sizes, dtype=like.dtype, device=like.device)
    return Uncomputed(fake, partial(refusal, f"{str(like.dtype).removeprefix('torch.')} {list(sizes)}"))


@cache
def _mode() -> FakeTensorMode:
    return FakeTensorMode()
