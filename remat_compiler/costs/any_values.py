"""The operators that may be executed on made-up values while a program is compiled: they are safe on any.

None reads an index, a length, a seed or a pointer from a value, as the backward of oneDNN's LSTM does from what its
forward kept, and fractional pooling from its samples: a made-up one could end the process.  None has an effect, and
none communicates.  All are torch's own: what an operator of another library does, nobody here knows.  A new operator of
torch is not executed until it stands here.
"""

from __future__ import annotations

import operator
from functools import cache

import torch
from torch import fx, nn
from torch._ops import HigherOrderOperator, OpOverload

from remat_compiler import torch_compat
from remat_compiler.costs.clock import DEVICE_TYPES
from remat_compiler.costs.op_call import OpCall, allocates_results_only, operator_name

NAMESPACES = frozenset({"aten", "prims"})

_PRODUCTS = """
    mm addmm bmm baddbmm addbmm mv addmv dot vdot addr _scaled_mm _scaled_mm_v2 _trilinear linear _int_mm
    convolution convolution_backward convolution_overrideable convolution_backward_overrideable mkldnn_rnn_layer
    _addmm_activation _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl
    _thnn_fused_gru_cell _thnn_fused_gru_cell_backward _slow_conv2d_forward slow_conv3d_forward
"""
_ATTENTION = """
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
    _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
    _scaled_dot_product_fused_attention_overrideable
"""
_NORMALISATIONS = """
    native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward native_batch_norm
    native_batch_norm_backward _native_batch_norm_legit _native_batch_norm_legit_no_training
    _native_batch_norm_legit_functional _batch_norm_with_update _batch_norm_with_update_functional
    _batch_norm_no_update batch_norm_backward _fused_rms_norm _fused_rms_norm_backward rms_norm _softmax
    _softmax_backward_data _log_softmax _log_softmax_backward_data _safe_softmax renorm _weight_norm_interface
    _weight_norm_interface_backward _masked_softmax _masked_softmax_backward
"""
_REDUCTIONS = """
    sum nansum mean prod amax amin aminmax max min argmax argmin any all var var_mean std std_mean norm
    linalg_vector_norm logsumexp cumsum cumprod cummax cummin _cummax_helper _cummin_helper logcumsumexp
    count_nonzero trace dist _cdist_forward _cdist_backward _pdist_forward _pdist_backward _euclidean_dist median
    nanmedian kthvalue mode sort topk histc allclose equal
"""
_LOSSES = """
    mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward
    soft_margin_loss soft_margin_loss_backward binary_cross_entropy binary_cross_entropy_backward
    binary_cross_entropy_with_logits log_sigmoid_forward log_sigmoid_backward
"""
_ELEMENTWISE = """
    glu glu_backward glu_jvp elu_backward gelu_backward leaky_relu_backward hardtanh_backward hardswish
    hardswish_backward hardsigmoid_backward mish_backward silu_backward softplus_backward softshrink_backward
    hardshrink_backward _prelu_kernel _prelu_kernel_backward threshold_backward rrelu_with_noise
    rrelu_with_noise_backward rrelu_with_noise_functional where masked_fill fill rsub floor_divide linalg_cross
    polar complex native_dropout native_dropout_backward isin ldexp _conj_physical clamp lerp _fused_dropout
    _masked_scale mvlgamma deg2rad rad2deg
"""
_SHAPES = """
    cat _chunk_cat stack block_diag repeat roll flip rot90 tril triu diag_embed constant_pad_nd pixel_shuffle
    pixel_unshuffle channel_shuffle native_channel_shuffle im2col col2im slice_backward select_backward
    diagonal_backward unfold_backward slice_scatter select_scatter diagonal_scatter as_strided_scatter copy copy_
    contiguous _reshape_copy clone _to_copy unsafe_split unsafe_split_with_sizes split_with_sizes_copy unbind_copy
    view_as_complex_copy view_as_real_copy narrow_copy expand_copy permute_copy view_copy alias_copy as_strided_copy
    diagonal_copy squeeze_copy t_copy transpose_copy unsqueeze_copy _unsafe_view unfold_copy linspace logspace
    tril_indices triu_indices convert_element_type broadcast_in_dim iota
"""
_WINDOWS = """
    avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward
    _adaptive_avg_pool3d _adaptive_avg_pool3d_backward max_pool2d_with_indices max_pool3d_with_indices
    adaptive_max_pool2d adaptive_max_pool3d grid_sampler_2d
    grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward affine_grid_generator
    affine_grid_generator_backward
"""
_PADS = [
    f"{kind}_pad{n}d{end}" for kind in ("reflection", "replication") for n in (1, 2, 3) for end in ("", "_backward")
]
_SCALINGS = """
    linear1d bilinear2d trilinear3d bicubic2d bilinear2d_aa bicubic2d_aa nearest1d nearest2d nearest3d nearest_exact1d
    nearest_exact2d nearest_exact3d
"""
_UPSAMPLES = [
    f"{start}upsample_{kind}{end}" for start in ("", "_") for kind in _SCALINGS.split() for end in ("", "_backward")
]
_ALGEBRA = """
    _fft_c2c _fft_c2r _fft_r2c _linalg_det _linalg_slogdet _linalg_solve_ex _linalg_eigh _linalg_svd _linalg_eigvals
    linalg_eig linalg_qr linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex linalg_lu linalg_lu_factor_ex
    linalg_matrix_exp linalg_pinv linalg_cholesky_ex linalg_solve_triangular triangular_solve cholesky
    cholesky_solve cholesky_inverse geqrf ormqr
"""
_RANDOM = """
    bernoulli rand rand_like randn randn_like randint randint_like randperm normal uniform exponential cauchy geometric
    log_normal random multinomial poisson binomial _standard_gamma
"""
"""A generator's state is put back after a draw."""
_LISTS = (
    _PRODUCTS, _ATTENTION, _NORMALISATIONS, _REDUCTIONS, _LOSSES, _ELEMENTWISE, _SHAPES, _WINDOWS, _ALGEBRA, _RANDOM,
)  # fmt: skip
OPERATORS = frozenset({*_PADS, *_UPSAMPLES, *" ".join(_LISTS).split()})
"""Names of torch's operators, without overloads, that are safe on any values; pointwise ones besides."""


RUNS_BODIES = frozenset({"cond", "scan", "map_impl", "associative_scan", "while_loop"})
"""Operators that run graphs, each a number of times that no value decides, or that can be run so."""


def is_measurable(call: OpCall) -> bool:
    """Whether a call may be executed on made-up values, on a device whose times and allocations can be read.

    An operator that runs another one with a random state saved or set is as safe as that one, and one that runs graphs
    is as safe as all operators in these.
    """
    if call.device_type not in DEVICE_TYPES:
        return False
    if call.bodies:
        return str(call.func) in RUNS_BODIES and all(_is_safe_body(body.module) for body in call.bodies)
    return _is_safe(call.executed.func)


def _is_safe_body(module: nn.Module) -> bool:
    graphs = [one.graph for one in module.modules() if isinstance(one, fx.GraphModule)]
    return bool(graphs) and all(_is_safe_within(node) for graph in graphs for node in graph.nodes)


def _is_safe_within(node: fx.Node) -> bool:
    if node.op != "call_function":
        return node.op in ("placeholder", "get_attr", "output")
    func = node.target
    # Their own graphs are looked at with those of the outermost one.
    if isinstance(func, HigherOrderOperator):
        return str(func) in RUNS_BODIES - {"while_loop"}
    if not isinstance(func, OpOverload):
        return getattr(func, "__module__", "") == operator.add.__module__
    reads_values = torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags
    return _is_safe(func) or (func.namespace in NAMESPACES and allocates_results_only(func) and not reads_values)


@cache
def _is_safe(func: object) -> bool:
    if not isinstance(func, OpOverload) or func.namespace not in NAMESPACES:
        return False
    name = operator_name(func)
    # Operators that work in place are as safe as those that make a result.
    made = name.removesuffix("_")
    siblings = torch_compat.overloads_of(f"{func.namespace}::{made}") if made != name else []
    return name in OPERATORS or made in OPERATORS or any(torch.Tag.pointwise in one.tags for one in (func, *siblings))
