"""Operators on one element after another, random numbers, reductions, normalisations and losses.

What torch tags as pointwise has a row only for what that does not tell.  Arithmetic is measured on what Inductor emits
for a CPU with AVX-512, one thread, values in the cache: erf takes 1.0 ns, exp 0.6, log 1.2, sigmoid 0.8, rsqrt 0.6,
tanh 3.1 (torch's own kernel for it is faster), the Philox generator (not vectorised) 13.6.

On a GPU it is counted in instructions, of which erf takes 20 (`calibration.SPECIAL_FLOPS`).  The unit for special
functions has an eighth of the lanes, so what it computes by itself counts 8, and two instructions around it.  Ten
rounds of Philox, with four multiplications of integers at half the rate each, count 100.
"""

from __future__ import annotations

from remat_compiler.operators.row import NOTHING, Row

ROWS = (
    # Special functions.
    Row("exp log log2", evaluations=1.0, gpu_evaluations=0.5, dear=True),
    Row("exp2 sin cos", evaluations=1.0, gpu_evaluations=0.5),
    Row("prims::exp prims::exp2 prims::log prims::log2 prims::sin prims::cos", evaluations=1.0, gpu_evaluations=0.5),
    Row("log10", dear=True),
    Row("sigmoid log1p silu gelu", evaluations=1.0, dear=True),
    Row("tanh", evaluations=1.0, loop_evaluations=3.0, dear=True),
    Row("prims::tanh", evaluations=1.0, loop_evaluations=3.0),
    Row("expm1 erf erfc softplus mish elu", evaluations=1.0),
    Row("prims::expm1 prims::log1p prims::erf prims::erfc", evaluations=1.0),
    Row("gelu_backward", safe=True, evaluations=2.0),
    Row("silu_backward", evaluations=2.0),
    Row("sqrt rsqrt prims::sqrt prims::rsqrt", evaluations=0.5),
    Row("erfinv tan atan2 lgamma digamma", evaluations=3.0),
    Row("prims::tan prims::atan2 prims::lgamma prims::digamma", evaluations=3.0),
    # Others on one element after another.
    Row("glu glu_backward glu_jvp elu_backward leaky_relu_backward hardtanh_backward hardswish", safe=True),
    Row("hardswish_backward hardsigmoid_backward mish_backward softplus_backward softshrink_backward", safe=True),
    Row("hardshrink_backward _prelu_kernel _prelu_kernel_backward threshold_backward", safe=True),
    Row("rrelu_with_noise rrelu_with_noise_backward rrelu_with_noise_functional", safe=True),
    Row("where prims::where fill prims::fill rsub floor_divide linalg_cross polar complex", safe=True),
    Row("masked_fill", elementwise=True, safe=True),
    Row("isin _conj_physical _masked_scale", safe=True),
    Row("fill_ zero zero_", cpu=NOTHING, cuda=NOTHING),
    Row("ldexp mvlgamma", in_steps=True, overwriting="composed"),
    Row("deg2rad rad2deg", in_steps=True),
    Row("mul.Scalar multiply.Scalar", overwriting="rounds number"),
    Row("_foreach_* _fused_*", cuda=NOTHING),
    # Random numbers; a generator's state is put back after a draw.
    Row("rand rand_like randn randn_like", safe=True, evaluations=10.0, gpu_evaluations=5.0),
    Row("bernoulli native_dropout", safe=True, cuda=NOTHING, evaluations=10.0, gpu_evaluations=5.0),
    Row("native_dropout_backward _fused_dropout randint", safe=True, cuda=NOTHING),
    Row("randint_like randperm normal uniform exponential cauchy geometric log_normal random", safe=True),
    Row("multinomial poisson binomial _standard_gamma prims::normal prims::uniform", safe=True),
    # Inductor's own random numbers come from seeds within its loops.
    Row("prims::inductor_seed prims::inductor_seeds", cpu=NOTHING, cuda=NOTHING, seeds="drawn"),
    Row("prims::inductor_random", cpu=NOTHING, cuda=NOTHING, evaluations=10.0, gpu_evaluations=5.0, seeds="given"),
    Row("prims::inductor_lookup_seed", loop="pointwise", cpu=NOTHING, cuda=NOTHING),
    Row("prims::inductor_*", cpu=NOTHING, cuda=NOTHING),
    # Reductions, scans and sorts.
    Row("sum nansum mean prod amax amin aminmax max min argmax argmin any all var var_mean std std_mean", safe=True),
    Row("norm linalg_vector_norm count_nonzero trace dist median nanmedian kthvalue mode histc allclose", safe=True),
    Row("logsumexp", safe=True, cuda="logsumexp", evaluations=1.0),
    Row("prims::sum prims::prod", loop="reduction", safe=True),
    Row("prims::amax prims::amin prims::var", safe=True),
    Row("prims::prepare_softmax_online", loop="reduction", evaluations=2.0),
    Row("cumsum cumprod cummax cummin _cummax_helper _cummin_helper logcumsumexp sort topk", safe=True),
    Row("_cdist_forward _cdist_backward _pdist_forward _pdist_backward _euclidean_dist", safe=True),
    # Normalisations.
    Row("_softmax _log_softmax", safe=True, cuda=NOTHING, evaluations=1.0),
    Row("_softmax_backward_data _log_softmax_backward_data", safe=True, cuda=NOTHING),
    Row("_safe_softmax _masked_softmax _masked_softmax_backward renorm rms_norm", safe=True),
    Row("_weight_norm_interface _weight_norm_interface_backward", safe=True),
    Row("_fused_rms_norm _fused_rms_norm_backward", safe=True, cuda=NOTHING),
    Row("native_layer_norm", loop="reduction", safe=True, cuda=NOTHING, result="types"),
    Row("native_group_norm", loop="reduction", safe=True, result="types"),
    Row("native_layer_norm_backward native_group_norm_backward", safe=True, result="types"),
    Row("native_batch_norm native_batch_norm_backward _native_batch_norm_legit", safe=True, result="types and layout"),
    Row("_native_batch_norm_legit_no_training _batch_norm_with_update", safe=True, result="types and layout"),
    Row("_native_batch_norm_legit_functional", safe=True, result="types and layout"),
    Row("_batch_norm_with_update_functional", safe=True, result="types and layout"),
    Row("_batch_norm_no_update batch_norm_backward", safe=True),
    # Losses.
    Row("mse_loss smooth_l1_loss soft_margin_loss binary_cross_entropy", safe=True, result="shrunk terms"),
    Row("mse_loss_backward smooth_l1_loss_backward soft_margin_loss_backward binary_cross_entropy_backward", safe=True),
    Row("huber_loss huber_loss_backward binary_cross_entropy_with_logits", safe=True),
    Row("log_sigmoid_forward log_sigmoid_backward", safe=True),
    # Only a loss that is reduced copies its arguments.
    Row("nll_loss_forward", cpu="nll_loss", cuda=NOTHING),
    Row("nll_loss2d_forward", cpu="nll_loss"),
    Row("nll_loss_backward", cpu="indices", cuda=NOTHING),
    Row("nll_loss2d_backward _ctc_loss", cpu="indices"),
    Row("_ctc_loss_backward", cpu="ctc_backward"),
    Row("multi_margin_loss", one_piece=(0,)),
    Row("multi_margin_loss_backward", one_piece=(1,)),
)
