"""Operators with an argument for the result: the same bits as without it, in memory that held anything."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

from remat_compiler.torch_compat import placed_in, result_form
from remat_compiler.torch_compat.overwriting import _COMPARED
from torch_compat.test_overwriting import DTYPES, arguments, bits

aten = torch.ops.aten
GAP_BYTES = 128


def pointwise() -> list[OpOverload]:
    packets = [getattr(aten, name) for name in sorted(dir(aten))]
    overloads = [
        getattr(packet, name)
        for packet in packets
        if isinstance(packet, OpOverloadPacket)
        for name in packet.overloads()  # type: ignore[no-untyped-call]
    ]
    ops = [op for op in overloads if isinstance(op, OpOverload) and torch.Tag.pointwise in op.tags]
    return [op for op in ops if result_form(op) is not None]


def randn(*size: int) -> Tensor:
    return torch.randn(size)


def indices(*size: int, top: int) -> Tensor:
    return torch.randint(0, top, size)


def cases() -> list[tuple[OpOverload, tuple[Any, ...]]]:
    """Calls of the operators that are not pointwise; matrices are large enough for blocked and threaded kernels."""
    torch.manual_seed(0)
    a, b, image = randn(130, 200), randn(200, 70), randn(2, 3, 12, 12)
    left, right, soft = randn(3, 65, 40), randn(3, 40, 33), torch.softmax(a, 1)
    _, places = torch.nn.functional.max_pool2d(image, 2, return_indices=True)
    target, weight = indices(130, top=200), torch.tensor(130.0)
    loss = [torch.tensor(1.5), a, a + 1]
    return [
        *((aten.mm.default, (a, b)), (aten.mm.default, (a, randn(70, 200).t())), (aten.mv.default, (a, b[:, 0]))),
        *((aten.addmm.default, (randn(70), a, b)), (aten.addmm.default, (randn(130, 70), a, b))),
        *((aten.addmv.default, (randn(130), a, b[:, 0])), (aten.addbmm.default, (randn(65, 33), left, right))),
        *((aten.bmm.default, (left, right)), (aten.baddbmm.default, (randn(3, 65, 33), left, right))),
        *((aten._softmax.default, (a, 1, False)), (aten._log_softmax.default, (a, 0, False))),
        (aten._softmax_backward_data.default, (randn(130, 200), soft, 1, torch.float32)),
        (aten._log_softmax_backward_data.default, (randn(130, 200), soft.log(), 1, torch.float32)),
        *(
            (aten.sum.dim_IntList, (a, [0])),
            (aten.sum.dim_IntList, (image, [0, 2, 3], True)),
            (aten.mean.default, (a,)),
        ),
        *((aten.mean.dim, (a, [1], True)), (aten.amax.default, (a, [1])), (aten.amin.default, (a, [0]))),
        *((aten.var.correction, (a, [1])), (aten.std.correction, (a, [0])), (aten.logsumexp.default, (a, [1]))),
        *((aten.linalg_vector_norm.default, (a,)), (aten.cumsum.default, (a, 1)), (aten.cumprod.default, (a, 0))),
        *((aten.tril.default, (a,)), (aten.triu.default, (a, 1)), (aten.cat.default, ([a, a + 1], 1))),
        *((aten.stack.default, ([a, a + 1], 1)), (aten.gather.default, (a, 1, indices(130, 9, top=200)))),
        *((aten.index.Tensor, (a, [None, target])), (aten.index_select.default, (a, 1, target))),
        *((aten.index_add.default, (a, 0, indices(5, top=130), randn(5, 200))), (aten.glu.default, (a, 1))),
        (aten.scatter.value, (a, 1, indices(130, 9, top=200), 2.0)),
        (aten.scatter_add.default, (a, 1, indices(130, 9, top=200), randn(130, 9))),
        *((aten.glu_backward.default, (randn(130, 100), a, 1)), (aten.hardswish.default, (a,))),
        *((aten.hardsigmoid_backward.default, (a, a + 1)), (aten.hardtanh_backward.default, (a, a + 1, -1, 1))),
        *((aten.leaky_relu_backward.default, (a, a + 1, 0.1, False)), (aten.softplus_backward.default, (a, a, 1, 20))),
        *((aten.elu_backward.default, (a, 1, 1, 1, False, a)), (aten.avg_pool2d.default, (image, [2, 2], [2, 2]))),
        (aten.avg_pool2d_backward.default, (randn(2, 3, 6, 6), image, [2, 2], [2, 2], [0, 0], False, True, None)),
        (
            aten.max_pool2d_with_indices_backward.default,
            (randn(2, 3, 6, 6), image, [2, 2], [2, 2], [0, 0], [1, 1], False, places),
        ),
        *((aten.mse_loss.default, (a, a + 1)), (aten.mse_loss_backward.default, (*loss, 1))),
        *((aten.smooth_l1_loss.default, (a, a + 1)), (aten.smooth_l1_loss_backward.default, (*loss, 1, 1.0))),
        (aten.nll_loss_backward.default, (torch.tensor(1.0), a, target, None, 1, -100, weight)),
        (aten.upsample_bilinear2d.default, (image, [24, 24], False)),
        (aten.upsample_bilinear2d_backward.default, (randn(2, 3, 24, 24), [24, 24], [2, 3, 12, 12], False)),
        (aten.upsample_nearest2d.default, (image, [24, 24])),
        (aten.upsample_nearest2d_backward.default, (randn(2, 3, 24, 24), [24, 24], [2, 3, 12, 12])),
    ]


CASES = cases()


def compare(op: OpOverload, args: Any, kwargs: dict[str, Any]) -> None:
    """Compute within memory full of ones, which are no numbers, and look at what lies around the result, too."""
    form = result_form(op)
    assert form is not None
    expected = op(*args, **kwargs)
    size_bytes = expected.untyped_storage().nbytes()
    # A whole number of elements of each type.
    length = GAP_BYTES + (size_bytes + 15) // 16 * 16 + GAP_BYTES
    memory = torch.full((length,), 255, dtype=torch.uint8)
    start = GAP_BYTES // expected.element_size()
    given = placed_in(memory.view(expected.dtype), expected.shape, expected.stride(), start)
    form.target(*args, **kwargs, **{form.result: given})
    assert given.data_ptr() == memory.data_ptr() + GAP_BYTES
    assert (given.shape, given.stride()) == (expected.shape, expected.stride())
    assert torch.equal(bits(given.reshape(-1)), bits(expected.reshape(-1))), expected.dtype
    assert (memory[:GAP_BYTES] == 255).all()
    assert (memory[GAP_BYTES + size_bytes :] == 255).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_operators_that_are_not_pointwise(dtype: torch.dtype) -> None:
    for op, args in CASES:
        converted = torch.utils._pytree.tree_map(lambda one, dtype=dtype: converted_to(one, dtype), args)
        compare(op, converted, {})
    assert {op.overloadpacket for op, _ in CASES} == _COMPARED


def converted_to(value: Any, dtype: torch.dtype) -> Any:
    if value is torch.float32:
        return dtype
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def test_pointwise_operators() -> None:
    ops = pointwise()
    assert len(ops) > 120
    idle = []
    for op in ops:
        computed = 0
        for dtype in DTYPES:
            args, kwargs = arguments(op, dtype)
            try:
                op(*args, **kwargs)
            except (RuntimeError, NotImplementedError):
                continue  # not of this type
            compare(op, args, kwargs)
            computed += 1
        if not computed:
            idle.append(str(op))
    assert idle == []


@pytest.mark.parametrize(
    "op",
    [
        aten.native_layer_norm.default,  # several results
        aten.convolution.default,  # a form that torch generates copies a result
        aten.clone.default,
        aten.bernoulli.p,  # random
        aten.view.default,  # memory of its argument
        aten.relu_.default,
        aten.linalg_pinv.atol_rtol_tensor,  # never compared
        torch.ops.prims.add.default,
    ],
)
def test_no_form_is_assumed_that_is_not_known(op: OpOverload) -> None:
    assert result_form(op) is None
