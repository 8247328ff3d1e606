"""Every place at which this project changes torch, in one table: the target, the reason, and what happens without it.

A *correctness* row keeps a result right or a budget kept; if its target is missing, code that needs it raises
`UnsupportedTorch`.  A *speed* row only saves time; if its target is missing, or takes other arguments than those known
here, it switches itself off, with one line at level INFO.  No target is looked up before it is needed.

All changes of torch go through `patching`, which takes rows of this table and nothing else.
"""

from __future__ import annotations

from remat_compiler.torch_compat.patch import Patch, Purpose

_CORRECTNESS, _SPEED = Purpose.CORRECTNESS, Purpose.SPEED
_INDUCTOR = "torch._inductor.config"
_FUNCTORCH = "torch._functorch.config"

# Emitted code: seen, checked and followed.
EMITTED_GRAPHS = Patch(
    "emitted graphs",
    "torch._inductor.output_code:CompiledFxGraph.post_compile",
    _CORRECTNESS,
    "shows each graph that Inductor compiled or loaded, whose peak is checked before it runs",
    "nothing tells what the compiled step takes",
    (("self", "example_inputs", "constants", "graph_kwargs"),),
)
EMITTED_CALLABLE = Patch(
    "emitted callable",
    "torch._inductor.output_code:CompiledFxGraph.current_callable",
    _CORRECTNESS,
    "runs an emitted graph on fake tensors, and stops calls at a forward",
    "nothing tells what the compiled step takes",
)
EMITTED_CONTEXT = Patch(
    "context of emitted graphs",
    "torch._inductor.output_code:CompiledFxGraph._compile_context",
    _SPEED,
    "keeps a dry run from using up what the first call needs to find tuned kernels",
    "kernels are tuned anew",
    since=(2, 14),
)
RETAINED_GRAPHS = Patch(
    "retained graphs",
    "torch._functorch._aot_autograd.runtime_wrappers:AOTDispatchAutograd.post_compile",
    _CORRECTNESS,
    "gives a backward that keeps its graph copies of what it writes over",
    "backward(retain_graph=True) would be refused, or find its values overwritten",
    (("spec",), ("compiled_fw_func", "compiled_bw_func")),  # the second form is that of 2.11
)
# Planned graphs: Inductor frees memory where the plan does, and takes none that is not planned.
KERNEL_GROUPS = Patch(
    "kernel groups",
    "torch._inductor.codegen.cpp:CppScheduling.ready_to_flush",
    _CORRECTNESS,
    "ends a C++ kernel where the plan frees memory",
    "loops of a planned graph would hold memory that the plan frees",
    (("self",),),
)
PRODUCT_FUSION = Patch(
    "product fusion",
    "torch._inductor.fx_passes.post_grad:is_valid_addmm_fusion",
    _CORRECTNESS,
    "keeps mm + x apart where the fused product would hold what the plan frees",
    "fused products would take memory that was not planned",
    (("match",),),
)
LOOP_FUSION = Patch(
    "loop fusion",
    "torch._inductor.choices:InductorChoices.can_fuse",
    _CORRECTNESS,
    "fuses no loops of a planned graph over a kernel",
    "fused loops would hold memory that the plan frees",
    (("scheduler", "node1", "node2", "shared_data_score"),),
)
DONATED_BUFFERS = Patch(
    "donated buffers",
    "torch._inductor.scheduler:Scheduler.get_donated_buffers",
    _CORRECTNESS,
    "keeps the body of a branch or a loop from writing over its arguments",
    "gradients through `torch.cond` may be wrong, as without this project",
    (("self",),),
)
RETURNED_INPUTS = Patch(
    "returned inputs",
    "torch._functorch._aot_autograd.schemas:ViewAndMutationMeta.__post_init__",
    _CORRECTNESS,
    "returns inputs that a graph changes and returns at their place, beside others that change",
    "another input would get their values, as without this project",
    (("self",),),
    before=(2, 15),
)
# The calls of what the user compiled.
COMPILED_CALLS = Patch(
    "compiled calls",
    "torch._dynamo.eval_frame:OptimizeContext.__call__",
    _CORRECTNESS,
    "shows what is compiled, and follows its calls until one runs a planned graph",
    "nothing tells of a model that the budget has no effect on",
    (("self", "fn"),),
)
BACKWARD_STARTS = Patch(
    "begin of a backward",
    "torch.autograd:_engine_run_backward",
    _CORRECTNESS,
    "shows what operators left to eager hold as a backward begins",
    "nothing tells of memory that eager operators take behind the planned graphs",
    (("t_outputs",),),
)
# Sizes that change from call to call.
PROFILER_STARTS = Patch(
    "begin of a profile",
    "torch.autograd.profiler:_run_on_profiler_start",
    _CORRECTNESS,
    "ends a record of memory that is under way where the program begins a profile",
    "the program's profiler would be refused",
    ((),),
)
CHANGING_SIZES = Patch(
    "changing sizes",
    "torch._dynamo.variables.builder:is_dynamic_source",
    _CORRECTNESS,
    "has Dynamo's last compilation of a function serve all sizes",
    "sizes after the last compilation would run in eager, without a budget",
    (("source_name",),),
)
# The time of a partition: work of torch's that is done in vain, or slowly.
GRAPH_CODE = Patch(
    "code of graphs",
    "torch.fx.graph_module:GraphModule.recompile",
    _SPEED,
    "writes no Python code for graphs that nobody calls",
    "Python code is written for every graph in between",
    (("self",),),
)
NODE_ARGUMENTS = Patch(
    "arguments of nodes",
    "torch.fx.graph:pytree",
    _SPEED,
    "does not search the arguments of copied nodes for symbolic numbers",
    "making a node takes twice as long",
    since=(2, 13),
)
DEAD_CODE = Patch(
    "dead code",
    "torch.fx.graph:Graph.eliminate_dead_code",
    _SPEED,
    "finds dead code by its missing users",
    "torch's own pass looks at every node",
    (("self", "is_impure_node"),),
)
MINIMUM_CUT = Patch(
    "minimum cut",
    "networkx:minimum_cut",
    _SPEED,
    "solves the network of torch's partitioner part by part",
    "networkx solves all of it at once",
    (("flowG", "_s", "_t"),),
    before=(2, 15),  # torch has a solver of its own
)
EXTRACTION = Patch(
    "extraction",
    "torch._functorch.partitioners:_extract_graph_with_inputs_outputs",
    _SPEED,
    "extracts no graph twice",
    "torch extracts the backward twice",
    (("joint_graph", "inputs", "outputs", "outputs_descs"),),
)
# Tries of a search, which need the emitted wrappers but no kernels.
CPU_KERNELS = Patch(
    "C++ kernels",
    "torch._inductor.async_compile:AsyncCompile.cpp_pybinding",
    _SPEED,
    "compiles no kernels of code that only serves a dry run, and several of other code in one file",
    "kernels of tries that are given up are compiled, too, and each C++ kernel by itself",
)
KERNELS_READY = Patch(
    "collected C++ kernels",
    "torch._inductor.async_compile:AsyncCompile.wait",
    _SPEED,
    "compiles the C++ kernels that were collected before a graph's code is used",
    "each C++ kernel is compiled in a file of its own, a second each",
    (("self", "scope"),),
)
PLAIN_CPU_KERNELS = Patch(
    "plain C++ kernels",
    "torch._inductor.async_compile:AsyncCompile.cpp",
    _SPEED,
    "compiles no kernels of code that only serves a dry run",
    "kernels of tries that are given up are compiled, too",
)
TRITON_KERNELS = Patch(
    "Triton kernels",
    "torch._inductor.async_compile:AsyncCompile.triton",
    _SPEED,
    PLAIN_CPU_KERNELS.gives,
    PLAIN_CPU_KERNELS.without,
)
# Settings: torch has them to be changed, but may drop or rename them.
BUFFER_REUSE = Patch(
    "setting: reuse of buffers",
    f"{_INDUCTOR}:allow_buffer_reuse",
    _CORRECTNESS,
    "frees memory where the plan frees it",
    "memory would be held beyond the plan",
)
REORDERING = Patch(
    "setting: order by peak",
    f"{_INDUCTOR}:reorder_for_peak_memory",
    _CORRECTNESS,
    "runs the kernels of a planned graph in the planned order",
    "kernels would run in another order than planned",
)
LAYOUT = Patch(
    "setting: layout",
    f"{_INDUCTOR}:layout_optimization",
    _CORRECTNESS,
    "runs convolutions in the program's layout where that of Inductor does not fit",
    "convolutions would take memory that was not planned",
)
PREFERRED_LAYOUT = Patch(
    "layout of saved inputs",
    "torch._inductor.graph:GraphLowering.find_nodes_prefer_channels_last",
    _CORRECTNESS,
    "saves an input as it is where a plan copies it for a convolution again in the backward",
    "such an input would be copied a second time, and the copy saved",
    (("self",),),
)
BACKWARD_LAYOUT = Patch(
    "layout of the backward",
    "torch._inductor.graph:GraphLowering.decide_layout_opt",
    _SPEED,
    "runs the backward of planned convolutions in the layout of their forward",
    "where a group of a convolution has one channel, Inductor copies what its backward reads",
    (("gm", "is_inference"),),
)
LONG_LOOPS = Patch(
    "setting: length of loops",
    f"{_INDUCTOR}:realize_opcount_threshold",
    _CORRECTNESS,
    "writes to memory what a plan for a GPU says, however long the loops become",
    "long loops would take memory that was not planned",
)
ROW_PADDING = Patch(
    "setting: padding of rows",
    f"{_INDUCTOR}:comprehensive_padding",
    _CORRECTNESS,
    "lays out the rows of a planned graph without gaps, so that one value can take the memory of another",
    "values of an odd width would take memory that was not planned",
)
PARTITIONER = Patch(
    "setting: partitioner",
    f"{_INDUCTOR}:custom_partitioner_fn",
    _CORRECTNESS,
    "cuts joint graphs as planned",
    "nothing would be planned",
)
KERNEL_CACHES = Patch(
    "setting: no caches",
    f"{_INDUCTOR}:force_disable_caches",
    _CORRECTNESS,
    "keeps code whose kernels were not compiled out of all caches",
    "a cache could hand out code that cannot run",
)
QUANTIZATION = Patch(
    "setting: passes after the cut",
    f"{_INDUCTOR}:post_grad_fusion_options",
    _CORRECTNESS,
    "quantizes saved values once, in the graphs that run",
    "saved values would be quantized in an outline of the graphs",
)
OWN_BUDGET = Patch(
    "setting: torch's budget",
    f"{_FUNCTORCH}:activation_memory_budget",
    _CORRECTNESS,
    "cuts as torch does without a budget of its own",
    "torch's budget would count beside the one asked for",
)
MERGING = Patch(
    "setting: merging",
    f"{_FUNCTORCH}:cse",
    _CORRECTNESS,
    "merges duplicates once",
    "nodes merged a second time would not be those that were planned",
)
STEP_CACHE = Patch(
    "setting: cache of steps",
    f"{_FUNCTORCH}:enable_autograd_cache",
    _CORRECTNESS,
    "has every joint graph planned",
    "a cache could hand out a step planned for another budget",
)
BACKWARD_AT_ONCE = Patch(
    "setting: backward at once",
    f"{_FUNCTORCH}:force_non_lazy_backward_lowering",
    _CORRECTNESS,
    "compiles the backward with the forward, to check both before the first step",
    "a step would run before its peak is known",
)
OWN_FRAMES = Patch(
    "own frames",
    "torch._dynamo.convert_frame:CatchErrorsWrapper.__call__",
    _SPEED,
    "keeps Dynamo from tracing the hooks that run in a backward",
    "Dynamo traces them where a compiled function calls backward, and warns of what it cannot trace",
    (("self", "frame", "cache_entry", "frame_state"),),
)
HOOK_REGISTRATIONS = Patch(
    "registrations of hooks",
    "torch:Tensor.register_post_accumulate_grad_hook",
    _SPEED,
    "tells graphs of hooks that come after their compilation",
    "gradients of parameters that get hooks later leave only once the backward is over",
    (("self", "hook"),),
)
GRADIENT_CLIPPING = Patch(
    "clipping of gradients",
    "torch.nn.utils.clip_grad:_clip_grads_with_norm_",
    _CORRECTNESS,
    "refuses to clip gradients that are gone, of parameters that are updated within the backward",
    "`clip_grad_norm_` would do nothing for parameters that `step_in_backward` serves, in silence",
    (("parameters", "max_norm", "total_norm"),),
)
# Sizes that change.
SIZE_ASSUMPTIONS = Patch(
    "assumptions of sizes",
    "torch.fx.experimental._config:backed_size_oblivious",
    _SPEED,
    "compiles losses in chunks for any number of rows at once",
    "lengths at which a chunk has one row or none are compiled for themselves",
)

PATCHES: tuple[Patch, ...] = (
    EMITTED_GRAPHS,
    EMITTED_CALLABLE,
    EMITTED_CONTEXT,
    RETAINED_GRAPHS,
    KERNEL_GROUPS,
    DONATED_BUFFERS,
    RETURNED_INPUTS,
    PRODUCT_FUSION,
    LOOP_FUSION,
    COMPILED_CALLS,
    BACKWARD_STARTS,
    PROFILER_STARTS,
    CHANGING_SIZES,
    GRAPH_CODE,
    NODE_ARGUMENTS,
    DEAD_CODE,
    MINIMUM_CUT,
    EXTRACTION,
    CPU_KERNELS,
    KERNELS_READY,
    PLAIN_CPU_KERNELS,
    TRITON_KERNELS,
    BUFFER_REUSE,
    REORDERING,
    LAYOUT,
    PREFERRED_LAYOUT,
    BACKWARD_LAYOUT,
    LONG_LOOPS,
    ROW_PADDING,
    PARTITIONER,
    KERNEL_CACHES,
    QUANTIZATION,
    OWN_BUDGET,
    MERGING,
    STEP_CACHE,
    BACKWARD_AT_ONCE,
    OWN_FRAMES,
    HOOK_REGISTRATIONS,
    GRADIENT_CLIPPING,
    SIZE_ASSUMPTIONS,
)
"""All rows, in the order of their definitions."""
