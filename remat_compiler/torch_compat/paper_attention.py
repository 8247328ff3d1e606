"""Which kernel `scaled_dot_product_attention` takes on a GPU, decided without one.

The rules are those of ATen's ``native/transformers/cuda/sdp_utils.cpp``:

    cuDNN      preferred on 9.0 and 10.0; half precision, heads of at most 128, a multiple of 8
    flash      from 8.0 on; half precision, no mask, one width of at most 256 for all
    efficient  every GPU; heads a multiple of 8 (half precision) or 4 (float32, from 8.0 on); equal numbers of heads
    math       everything else: products and a softmax
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

import torch

from remat_compiler.devices.gpus import Gpu

_ATEN = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_PREFER_CUDNN = ((9, 0), (10, 0))
_KEY = torch._C.DispatchKey.CompositeImplicitAutograd


def enter_attention(stack: ExitStack, gpu: Gpu) -> None:
    """Let attention on CUDA take the kernel that it would take on `gpu`, until `stack` is closed."""
    operator = _ATEN.scaled_dot_product_attention.default

    def attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        given = (query, key, value, attn_mask, dropout_p, is_causal)
        kernel = kernel_of(gpu, query, key, value, attn_mask, is_causal, enable_gqa)
        return _CALLS[kernel](*given, scale, enable_gqa)

    operator.py_impl(_KEY)(attention)
    operator._dispatch_cache.clear()

    def undo() -> None:
        del operator.py_kernels[_KEY]
        operator._dispatch_cache.clear()

    stack.callback(undo)


def kernel_of(gpu: Gpu, query: Any, key: Any, value: Any, mask: Any, is_causal: bool, enable_gqa: bool) -> str:
    """``cudnn``, ``flash``, ``efficient`` or ``math``; see the module docstring."""
    allowed = _allowed()
    if query.device.type != "cuda" or query.dim() != 4:
        return "math"
    half, width = query.dtype in _HALF, query.shape[-1]
    same_width = width == value.shape[-1]
    # A causal mask of flash attention is aligned to the other corner if there are more keys than queries.
    square = not is_causal or query.shape[-2] == key.shape[-2]
    fits = {
        # cuDNN's kernel has no gradient of the mask.
        "cudnn": half and width % 8 == 0 and max(width, value.shape[-1]) <= 128 and not _needs_gradients(mask),
        "flash": half and mask is None and gpu.capability >= (8, 0) and width <= 256 and same_width and square,
        "efficient": width % _alignment(gpu, half) == 0 and not enable_gqa,
    }
    order: tuple[str, ...] = ("flash", "efficient")
    # torch has cuDNN last, or in front where it is known to be faster.
    if gpu.capability in _PREFER_CUDNN and os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1":
        order = ("cudnn", *order)
    return next((kernel for kernel in order if allowed[kernel] and fits[kernel]), "math")


def _allowed() -> dict[str, bool]:
    """The kernels that the user allows (`torch.nn.attention.sdpa_kernel`)."""
    return {
        "cudnn": torch.backends.cuda.cudnn_sdp_enabled(),  # type: ignore[no-untyped-call]
        "flash": torch.backends.cuda.flash_sdp_enabled(),  # type: ignore[no-untyped-call]
        "efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),  # type: ignore[no-untyped-call]
    }


def _alignment(gpu: Gpu, half: bool) -> int:
    """What the width of a head must be a multiple of for the efficient kernel."""
    if half:
        return 8
    return 4 if gpu.capability >= (8, 0) else 1


def _needs_gradients(*tensors: Any) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors if tensor is not None)


def _cudnn(query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, scale: Any, _: bool) -> Any:
    saves = _needs_gradients(query, key, value)
    call = _ATEN._scaled_dot_product_cudnn_attention
    return call(query, key, value, _additive(mask, query), saves, dropout, causal, False, scale=scale)[0]


def _flash(query: Any, key: Any, value: Any, _: Any, dropout: float, causal: bool, scale: Any, __: bool) -> Any:
    width = query.shape[-1]
    scale = width**-0.5 if scale is None else scale
    padding = -width % 8
    # The kernel takes multiples of 8; torch pads in front of it.
    if padding:
        query, key, value = (torch.nn.functional.pad(tensor, (0, padding)) for tensor in (query, key, value))
    call = _ATEN._scaled_dot_product_flash_attention
    result = call(query, key, value, dropout, causal, False, scale=scale)[0]
    return result[..., :width] if padding else result


def _efficient(query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, scale: Any, _: bool) -> Any:
    if mask is not None:
        mask = _aligned(_additive(mask, query)).expand(*query.shape[:3], key.shape[2])
    saves = _needs_gradients(query, key, value)
    call = _ATEN._scaled_dot_product_efficient_attention
    return call(query, key, value, mask, saves, dropout, causal, scale=scale)[0]


def _additive(mask: Any, query: Any) -> Any:
    """The mask as what is added to the products: torch converts one of truth values in front of each kernel."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    zero, below = (torch.scalar_tensor(x, dtype=query.dtype, device=mask.device) for x in (0.0, float("-inf")))
    return torch.where(mask, zero, below)


def _aligned(mask: Any) -> Any:
    """The mask as the efficient kernel reads it: a copy with longer rows, where they do not begin at multiples of 8."""
    if mask.stride(-1) == 1 and all(stride % _MASK_ALIGNMENT == 0 for stride in mask.stride()[:-1]):
        return mask
    last = mask.shape[-1]
    return torch.nn.functional.pad(mask, (0, _MASK_ALIGNMENT - last % _MASK_ALIGNMENT))[..., :last]


def _math(query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, scale: Any, gqa: bool) -> Any:
    call = _ATEN._scaled_dot_product_attention_math
    return call(query, key, value, mask, dropout, causal, None, scale=scale, enable_gqa=gqa)[0]


_MASK_ALIGNMENT = 8
_CALLS = {"cudnn": _cudnn, "flash": _flash, "efficient": _efficient, "math": _math}
