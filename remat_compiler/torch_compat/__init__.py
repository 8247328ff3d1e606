"""The only package that touches torch's private partitioner, Inductor and AOTAutograd API.

Every function here behaves the same for torch 2.11 to 2.15; differences between the versions end here, so that a new
torch breaks one package.  One table, `patches`, lists every change of torch.
"""

from remat_compiler.torch_compat.allocators import device_allocator, recorded_requests, reserving_no_more
from remat_compiler.torch_compat.any_sizes import any_sizes, serve_any_sizes, shapes_at_any_sizes
from remat_compiler.torch_compat.backward_nodes import (
    BackwardBegins,
    after_backward,
    backwards_begun,
    compiled_backward,
    follow_backward,
    note_outputs,
    outputs_of,
    storages_saved_by,
)
from remat_compiler.torch_compat.backward_starts import Ends, Roots, follow_backward_starts, nodes_behind
from remat_compiler.torch_compat.checkpointed_calls import may_be_in_region, run_in_region
from remat_compiler.torch_compat.clipping import refuse_clipping
from remat_compiler.torch_compat.compiled_calls import BeginsCall, EndsCall, autograd_nodes_made, follow_compiled
from remat_compiler.torch_compat.compiled_graphs import (
    add_post_compile_listener,
    callable_replaced,
    compile_backward_at_once,
    remove_post_compile_listener,
    run_instead,
    symbolic_kernels,
)
from remat_compiler.torch_compat.compiler_cache import (
    cpp_compiler,
    inductor_fingerprint,
    partitioner_always_runs,
)
from remat_compiler.torch_compat.convolutions import (
    CONVOLUTION,
    CONVOLUTION_BACKWARD,
    in_order,
    is_channels_last,
    mark_copy,
    propagate_channels_last,
    propagate_strides,
    takes_channels_last,
    traced_value,
)
from remat_compiler.torch_compat.devices import (
    DEVICE_RESERVE,
    float32_precisions,
    free_device_bytes,
    gpu_at_hand,
    keep_device_busy,
    total_device_bytes,
    uses_cuda,
)
from remat_compiler.torch_compat.dynamo_context import (
    compile_lock,
    compiling,
    fake_outputs,
    fake_twins,
    keep_first_call_on_fakes,
    saved_compilation,
)
from remat_compiler.torch_compat.dynamo_errors import DynamoRestart, pass_through_dynamo
from remat_compiler.torch_compat.eager_backward import eager_backward
from remat_compiler.torch_compat.fake_tensors import (
    FAKE_RUN_ERRORS,
    VALUE_ERRORS,
    FakeTensor,
    FakeTensorMode,
    active_fake_mode,
    correct_norms,
    corrected_fake_result,
    fake_call,
    fake_view,
    is_laid_out_as_traced,
    is_seed_on_cpu,
    new_fake,
    value_as_run,
)
from remat_compiler.torch_compat.forward_arguments import detached_run, forward_arguments
from remat_compiler.torch_compat.frames import frames_tried, reasons_to_skip, traces_recurrent_layers
from remat_compiler.torch_compat.graph_ends import ends_at_graph_break, is_scalar, returns_scalar
from remat_compiler.torch_compat.hook_registrations import hook_registrations
from remat_compiler.torch_compat.in_place_calls import traceable_call
from remat_compiler.torch_compat.inductor import (
    LAY_OUT,
    PAD,
    PUT_IN_ORDER,
    TABLE_GRADIENT,
    CustomPartitionerFn,
    FusionLimit,
    code_generation_only,
    compile_with_inductor,
    has_convolutions,
    is_padded_in_loop,
    keep_layout,
    keep_planned_memory,
    mark_padded_in_loop,
    materialise,
    write_padded,
)
from remat_compiler.torch_compat.inductor_settings import is_inductor_setting, settings_of_mode, with_settings
from remat_compiler.torch_compat.input_names import input_position, input_sources, joint_input_source
from remat_compiler.torch_compat.interpreter import InterpretedGraph, StepInterpreter, compile_with_interpreter
from remat_compiler.torch_compat.joint import (
    MUST_SAVE,
    RECOMPUTE_SUFFIX,
    fusible_ops,
    is_backward_seed_offset,
    is_tangent,
    joint_outputs,
    made_by_backward,
    must_be_in_backward,
    must_be_in_forward,
    mutated_inputs,
    native_partition,
    prepare_joint,
    stock_partition,
)
from remat_compiler.torch_compat.leaving import (
    compiles_autograd,
    hooks_took,
    latest_hooks,
    leaf_to_serve,
    return_to_autograd,
    runs_backward,
)
from remat_compiler.torch_compat.modes import dispatch_modes, grad_mode_kept, outside_tracing
from remat_compiler.torch_compat.modules import copy_module, copying_nodes, new_module
from remat_compiler.torch_compat.nested_regions import inline_regions
from remat_compiler.torch_compat.operators import (
    COLLECTIVE_NAMESPACES,
    FLEX_ATTENTION,
    FLEX_ATTENTION_BACKWARD,
    arguments_by_name,
    can_replay,
    facts_of,
    has_fixed_sizes,
    has_unbacked_shape,
    is_functional_hop,
    is_of_gloo,
    meta_of_copy,
    never_repeatable,
    overload_name,
    overloads_of,
    rng_state_value,
    run_and_save_rng_state,
    run_with_rng_state,
    save_policy,
    sizes_depend_on_data,
)
from remat_compiler.torch_compat.out_of_memory import (
    DeviceMemory,
    add_note,
    device_memories,
    is_out_of_memory,
    note_of,
)
from remat_compiler.torch_compat.outline import Halves, finished_modules
from remat_compiler.torch_compat.overwriting import (
    OverwritingForm,
    allocates_results,
    have_one_layout,
    is_whole_storage,
    overwriting_form,
    plain_tensor,
    rounds_alike,
)
from remat_compiler.torch_compat.own_frames import skip_own_frames
from remat_compiler.torch_compat.paper_device import is_on_paper, paper_cpu, paper_device, paper_gpu
from remat_compiler.torch_compat.paper_values import AnyValues, KnownValues
from remat_compiler.torch_compat.patch import Patch, Purpose, untested
from remat_compiler.torch_compat.patches import PATCHES
from remat_compiler.torch_compat.pipelines import Pipeline, pipeline_now
from remat_compiler.torch_compat.products import ROW_BYTES, Product, computed, may_pad_products, products
from remat_compiler.torch_compat.profiler import begin_record, memory_deltas, peak_beyond, profiler_is_running
from remat_compiler.torch_compat.ranks import Ranks, default_timeout_s, ranks
from remat_compiler.torch_compat.recompilations import forget_dynamic, frame_compilation, input_shapes, make_dynamic
from remat_compiler.torch_compat.retained import graphs_may_be_retained, keeps_graph
from remat_compiler.torch_compat.saved_by_eager import (
    gradients_by_casts,
    gradients_by_eager,
    gradients_of_views,
    runs_eager_before,
    saved_before,
    saved_by_eager,
)
from remat_compiler.torch_compat.sharded_modules import (
    bucket_bytes,
    gathered_parameters,
    gradients_are_averaged,
    offloaded_parameters,
    sharded_gradients,
    sharded_groups,
    sharded_now,
)
from remat_compiler.torch_compat.size_expressions import (
    Size,
    UnknownSize,
    divided,
    expression,
    floor_divided,
    has_expression,
    is_in_order,
    least,
    most,
    number,
    product,
    same,
    sizes_of,
    with_symbols,
    write_sizes,
)
from remat_compiler.torch_compat.sizes import (
    UNBACKED_FALLBACK,
    allocated_bytes,
    allocation_alignment,
    memory_order,
    size_hint,
    sizes_at,
    symbol_hint,
)
from remat_compiler.torch_compat.streams import uses_streams
from remat_compiler.torch_compat.structured_trace import (
    Compilation,
    compile_id,
    current_compilation,
    structured_trace_is_on,
    trace_artifact,
)
from remat_compiler.torch_compat.symbols import (
    ONE,
    InputSymbol,
    LaterAssumptions,
    OwnSymbols,
    input_symbols,
    symbol_name,
    symbolic_inputs,
)
from remat_compiler.torch_compat.tensors import (
    WatchedSizes,
    any_fake,
    casts_gradient,
    is_wrapper_class,
    needs_gradients,
    num_bytes,
    storages_of,
    watched_sizes,
    watched_storages,
    wrapped_again,
    wrapped_tensors,
)
from remat_compiler.torch_compat.uncomputed import Uncomputed, uncomputed
from remat_compiler.torch_compat.view_scatters import scatter_into_copy, value_of_scatter
