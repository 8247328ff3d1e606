"""Products, attention, windows, linear algebra, and operators that run others.

On a GPU products hold nothing, since cuBLAS's workspace is kept once for a stream; convolutions hold what cuDNN's
choice of an algorithm needs, which no source tells.  Flash attention splits keys among blocks, with sums of their own,
for few short queries alone, as in generation.
"""

from __future__ import annotations

from remat_compiler.operators.row import NOTHING, Row

ROWS = (
    # Products, convolutions, recurrent layers and attention.
    Row("mm addmm bmm baddbmm _scaled_mm", safe=True, cuda=NOTHING, keeps=True),
    Row("addbmm mv addmv dot vdot _scaled_mm_v2 linear _int_mm _addmm_activation", safe=True, keeps=True),
    Row("addr _trilinear", safe=True),
    Row("convolution convolution_backward _slow_conv2d_forward slow_conv3d_forward", safe=True),
    Row("convolution_overrideable convolution_backward_overrideable", safe=True),
    Row("mkldnn_rnn_layer _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl", safe=True),
    Row("_thnn_fused_gru_cell _thnn_fused_gru_cell_backward", safe=True),
    Row("_scaled_dot_product_flash_attention_for_cpu", safe=True),
    Row("_scaled_dot_product_flash_attention_for_cpu_backward", safe=True),
    Row("_scaled_dot_product_fused_attention_overrideable", safe=True),
    Row("_scaled_dot_product_flash_attention", safe=True, cuda=NOTHING),
    Row("_scaled_dot_product_flash_attention_backward", cuda="flash_backward"),
    Row("_scaled_dot_product_efficient_attention", safe=True, cuda=NOTHING, result="seed on CPU"),
    Row("_scaled_dot_product_efficient_attention_backward", cuda="efficient_backward"),
    Row("_efficient_attention_forward", result="seed on CPU"),
    Row("_scaled_dot_product_cudnn_attention", safe=True, cuda="cudnn_attention"),
    # cuDNN does not say.
    Row("_scaled_dot_product_cudnn_attention_backward", cuda="flash_backward"),
    # Windows.
    Row("avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward", loop="windows", safe=True),
    Row("_adaptive_avg_pool2d", loop="windows", safe=True),
    Row("_adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward", safe=True),
    Row("prims::_low_memory_max_pool_with_offsets", loop="windows"),
    Row("max_pool2d_with_indices", safe=True, cuda=NOTHING),
    Row("max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d", safe=True),
    # Their backwards read indices.
    Row("max_pool2d_with_indices_backward", loop="windows", cpu="pool_backward"),
    Row("adaptive_max_pool2d_backward", cpu="pool_backward"),
    Row("max_pool3d_with_indices_backward adaptive_max_pool3d_backward", one_piece=(0,)),
    Row("fractional_max_pool2d_backward fractional_max_pool3d_backward", one_piece=(0,)),
    Row("max_unpool2d max_unpool3d", one_piece=(0, 1)),
    # Pixels.
    Row("reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward", safe=True),
    Row("reflection_pad3d reflection_pad3d_backward replication_pad1d replication_pad1d_backward", safe=True),
    Row("replication_pad2d replication_pad2d_backward replication_pad3d replication_pad3d_backward", safe=True),
    Row("upsample_linear1d upsample_linear1d_backward upsample_bilinear2d upsample_bilinear2d_backward", safe=True),
    Row("upsample_trilinear3d upsample_trilinear3d_backward upsample_bicubic2d upsample_bicubic2d_backward", safe=True),
    Row("_upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa", safe=True),
    Row("_upsample_bicubic2d_aa_backward upsample_nearest1d upsample_nearest1d_backward", safe=True),
    Row("upsample_nearest2d_backward upsample_nearest3d upsample_nearest3d_backward", safe=True),
    Row("_upsample_nearest_exact1d _upsample_nearest_exact1d_backward _upsample_nearest_exact2d", safe=True),
    Row("_upsample_nearest_exact2d_backward _upsample_nearest_exact3d _upsample_nearest_exact3d_backward", safe=True),
    Row("grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward", safe=True),
    Row("affine_grid_generator affine_grid_generator_backward", safe=True),
    Row("upsample_nearest2d", loop="pointwise", safe=True),
    # Linear algebra and Fourier transforms.
    Row("_linalg_det _linalg_slogdet _linalg_solve_ex _linalg_eigh _linalg_svd _linalg_eigvals linalg_eig", safe=True),
    Row(
        "linalg_qr linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex linalg_lu linalg_lu_factor_ex",
        safe=True,
    ),
    Row("linalg_matrix_exp linalg_pinv linalg_cholesky_ex linalg_solve_triangular triangular_solve", safe=True),
    Row("cholesky cholesky_solve cholesky_inverse geqrf ormqr _fft_c2c _fft_c2r _fft_r2c", safe=True),
    # Operators that are given others, or graphs.
    Row("higher_order::run_and_save_rng_state higher_order::run_with_rng_state", runs="with random state"),
    Row("higher_order::graphsafe_run_with_rng_state", runs="with random state"),
    Row("higher_order::with_effects", runs="in order of effects"),
    Row("higher_order::cond higher_order::scan higher_order::associative_scan higher_order::map_impl", runs="graphs"),
    Row("higher_order::while_loop", runs="graphs in a loop"),
    # Torch gives a user's Triton kernel clones of what it writes.
    Row("higher_order::triton_kernel_wrapper_functional", is_functional=True),
    # Attention with scores of the program's own is as its functions of scores are, which are graphs.
    Row("higher_order::flex_attention higher_order::flex_attention_backward", is_functional=True),
)
