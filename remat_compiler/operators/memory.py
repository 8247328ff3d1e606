"""Tensors made, viewed, copied and put together; elements gathered and scattered.

Operators that read an index, a length or a mask are not run for a measurement, since a made-up one could end the
process.  On a CPU most hold nothing beside their results; the closed forms of the others are from torch's own sources
(`aten/src/ATen/native`), and hold over all samples of torch's own tests.
"""

from __future__ import annotations

from remat_compiler.operators.row import NOTHING, Row

ROWS = (
    # Views.
    # Some schemas declare no alias, though the result shares the memory of the argument.
    Row("lift", loop="view"),
    Row("remat::store", loop="view", cpu=NOTHING, cuda=NOTHING),
    Row("_unsafe_view", loop="view", safe=True, cpu=NOTHING, cuda=NOTHING, same_order=True, may_copy=True),
    Row("view reshape", same_order=True, may_copy=True),
    Row("view.dtype unsqueeze squeeze", same_order=True),
    Row("alias", elementwise=True, same_order=True),
    Row("detach", elementwise=True),
    Row("as_strided", by_place=True),
    Row("contiguous", safe=True),
    # They change the shape of their argument.
    Row("squeeze_ unsqueeze_ transpose_ t_ detach_ set_ resize_ resize_as_", cpu=NOTHING, cuda=NOTHING),
    # Tensors made.
    Row("empty empty_like empty_strided empty_permuted new_empty_strided full", cpu=NOTHING, cuda=NOTHING),
    Row("new_empty new_full", loop="pointwise", cpu=NOTHING, cuda=NOTHING),
    Row("zeros_like ones_like full_like", elementwise=True, cpu=NOTHING, cuda=NOTHING),
    Row("zeros new_zeros ones new_ones scalar_tensor arange eye", cpu=NOTHING, cuda=NOTHING),
    Row("prims::empty prims::empty_strided prims::empty_permuted", cpu=NOTHING, cuda=NOTHING),
    Row("prims::full prims::full_like prims::scalar_tensor", cpu=NOTHING, cuda=NOTHING),
    Row("linspace logspace tril_indices triu_indices prims::iota", safe=True),
    # Copies, which write their result directly.
    Row("clone _to_copy", elementwise=True, safe=True, cpu=NOTHING, cuda=NOTHING, same_values=True),
    Row("prims::convert_element_type", same_values=True),
    Row("lift_fresh_copy prims::clone prims::device_put", cpu=NOTHING, cuda=NOTHING),
    Row("copy_", safe=True, cuda=NOTHING),
    Row("view_copy alias_copy _reshape_copy view_as_complex_copy view_as_real_copy narrow_copy expand_copy", safe=True),
    Row("permute_copy diagonal_copy squeeze_copy t_copy transpose_copy unsqueeze_copy unfold_copy", safe=True),
    Row("unbind_copy split_with_sizes_copy unsafe_split unsafe_split_with_sizes prims::broadcast_in_dim", safe=True),
    Row("as_strided_copy", safe=True, by_place=True),
    # Put together, padded and moved.
    Row("cat", loop="pointwise", safe=True, cuda=NOTHING),
    Row("stack prims::cat", safe=True, cuda=NOTHING),
    Row("_chunk_cat block_diag", safe=True),
    Row("constant_pad_nd", loop="pointwise", safe=True, index_operators=7, same_values=True),
    Row("flip repeat roll tril", loop="pointwise", safe=True),
    Row("rot90 triu diag_embed pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle", safe=True),
    Row("slice_backward select_backward diagonal_backward unfold_backward", safe=True),
    Row("im2col col2im", safe=True, result="shrunk input"),
    # Scatters into views.
    Row("select_scatter", loop="pointwise", safe=True, looks_up=True, index_operators=4, scatters_into="select.int"),
    Row("slice_scatter", loop="pointwise", safe=True, looks_up=True, index_operators=5, scatters_into="slice.Tensor"),
    Row("diagonal_scatter", safe=True, fills_first=True, scatters_into="diagonal.default"),
    # It may write beside its argument.
    Row("as_strided_scatter", safe=True, fills_first=True, scatters_into="as_strided.default", by_place=True),
    Row("prims::as_strided_scatter", safe=True, fills_first=True),
    Row("copy", safe=True, scatters_into="alias.default"),
    # Reads and checks.
    Row("prim::device _local_scalar_dense _assert_tensor_metadata", cpu=NOTHING, cuda=NOTHING),
    Row("_assert_async _functional_assert_async", cpu=NOTHING, cuda=NOTHING),
    # Elements gathered.
    Row("embedding", loop="pointwise", one_piece=(1,), cuda=NOTHING, looks_up=True),
    Row("index", cpu="index_list", looks_up=True),
    Row("_unsafe_index", loop="pointwise", cpu="index_list", looks_up=True),
    Row("index_select", loop="pointwise", cpu="selected", cuda=NOTHING, looks_up=True),
    Row("gather", cpu="gathered", cuda=NOTHING, looks_up=True),
    Row("take bincount", cpu="indices"),
    Row("one_hot", loop="pointwise", cpu="indices"),
    Row("masked_select", cpu="masked_select"),
    Row("_embedding_bag _embedding_bag_forward_only", cpu="bag"),
    Row("repeat_interleave", cpu="all_arguments"),
    Row("searchsorted bucketize", one_piece=(0, 1)),
    Row("nonzero nonzero_static", cpu=NOTHING, cuda=NOTHING),
    # Elements scattered.
    Row("index_put _unsafe_index_put", loop="scatter", cpu="index_list", fills_first=True),
    Row("_index_put_impl prims::_unsafe_index_put_", fills_first=True),
    Row("_unsafe_masked_index_put_accumulate", loop="scatter", fills_first=True),
    Row("index_add", loop="scatter", cpu="slices_added", fills_first=True),
    Row("scatter scatter_add", loop="scatter", cpu="scattered", fills_first=True),
    Row("scatter_reduce", loop="scatter", cpu="scatter_reduced", fills_first=True),
    Row("masked_scatter", cpu=NOTHING, fills_first=True),
    Row("masked_scatter_backward", cpu="masked_select", fills_first=True),
    Row("index_copy index_fill put", cpu="indices"),
    Row("embedding_dense_backward", cuda="table_gradient", one_piece=(0, 1), fills_first=True),
    Row("_embedding_bag_backward", cpu="bag_backward"),
    Row("_segment_reduce_backward", one_piece=(0, 2)),
    Row("flex_lib::zeros_and_scatter", fills_first=True),
    # Collectives.
    Row("_c10d_functional::wait_tensor", collective="wait"),
    Row("_c10d_functional::all_gather_into_tensor", collective="gather"),
    Row("_c10d_functional::reduce_scatter_tensor", collective="scatter", fills_first=True),
    Row("_c10d_functional::reduce_scatter_tensor_coalesced", fills_first=True),
    Row("c10d_functional::reduce_scatter_tensor c10d_functional::reduce_scatter_tensor_coalesced", fills_first=True),
    # Factors with pivots.
    Row("linalg_lu_solve", cpu="lu_solve"),
    Row("lu_unpack", cpu="lu_unpack"),
)
