"""Changes of torch for a GPU that is not there, as rows like those of `patches`.

These changes are made in processes of their own alone, see `paper_device`.
"""

from __future__ import annotations

from remat_compiler.torch_compat.patch import Patch, Purpose

_WITHOUT = "a GPU cannot be stood for on paper"
_FAKE = "torch._subclasses.fake_tensor"
_FUNCTIONAL = "torch._subclasses.functional_tensor"
_INTERFACE = "torch._dynamo.device_interface:CudaInterface"


def _row(
    name: str, target: str, gives: str, takes: tuple[tuple[str, ...], ...] = (), *, optional: bool = False
) -> Patch:
    return Patch(name, target, Purpose.CORRECTNESS, gives, _WITHOUT, takes, optional=optional)


# Autograd's engine, which would ask the device for streams.
ENGINE = _row(
    "autograd's engine",
    "torch.autograd.graph:_engine_run_backward",
    "tells devices that are asked for by the engine from those that are asked for by operators",
    (("t_outputs",),),
)
FUNCTION_BACKWARD = _row(
    "backwards written in Python",
    "torch.autograd.function:BackwardCFunction.apply",
    "runs what they call, such as FSDP2's scatters, as outside of the engine",
    (("self",),),
)
ENGINE_CALLBACKS = _row(
    "the engine's callbacks",
    "torch.autograd:Variable._execution_engine",
    "runs what is left to the end of a backward as outside of the engine",
)
_DISPATCH = ("func", "types", "args", "kwargs")
FAKE_TENSOR = _row(
    "dispatch of fake tensors",
    f"{_FAKE}:FakeTensor.__torch_dispatch__",
    "shows the engine a device without streams",
    (_DISPATCH,),
)
FAKE_MODE = _row(
    "dispatch of the fake mode",
    f"{_FAKE}:FakeTensorMode.__torch_dispatch__",
    "shows the engine a device without streams",
    (("self", *_DISPATCH),),
)
FUNCTIONAL_TENSOR = _row(
    "dispatch of functional tensors",
    f"{_FUNCTIONAL}:FunctionalTensor.__torch_dispatch__",
    "shows the engine a device without streams",
    (("self", *_DISPATCH),),
)
FUNCTIONAL_MODE = _row(
    "dispatch of the functional mode",
    f"{_FUNCTIONAL}:FunctionalTensorMode.__torch_dispatch__",
    "shows the engine a device without streams",
    (("self", *_DISPATCH),),
)
PROXY_MODE = _row(
    "dispatch of tracing",
    "torch.fx.experimental.proxy_tensor:ProxyTorchDispatchMode.__torch_dispatch__",
    "records the real device where the engine runs within a trace, as in the joint graph of attention's scores",
    (("self", *_DISPATCH),),
)
FUNCTIONAL_DEVICE = _row(
    "device of functional tensors",
    f"{_FUNCTIONAL}:FunctionalTensor.device",
    "shows Python the device that the engine does not see",
)
WRAPPERS = _row(
    "wrapper tensors",
    "torch:Tensor._make_wrapper_subclass",
    "lets functional tensors say which device they are on when they are asked",
)
SWAP = _row(
    "exchange of tensors",
    "torch.utils:swap_tensors",
    "moves and casts modules of fake tensors",
    (("t1", "t2"),),
)
TRUNCATED_NORMAL = _row(
    "draws within bounds",
    "torch.nn.init:_no_grad_trunc_normal_",
    "draws once, since nobody can see whether numbers are out of bounds",
    (("tensor", "mean", "std", "a", "b"),),
)
# Meshes of ranks.
_MESH = "torch.distributed.device_mesh:DeviceMesh"
MESH = _row(
    "meshes of ranks", f"{_MESH}.__init__", "keeps the ranks in a real tensor", (("self", "device_type", "mesh"),)
)
MESH_TENSOR = _row("ranks of a mesh", f"{_MESH}.mesh", "reads them from a real tensor")
MESH_GROUPS = _row("process groups of a mesh", f"{_MESH}._init_one_process_group", "reads the ranks from a real tensor")
MESH_PARTS = _row(
    "parts of a mesh", f"{_MESH}._get_all_submeshes", "reads the ranks from a real tensor", (("self", "mesh_dim_name"),)
)
AVOID_DEVICE = _row(
    "start of the device",
    f"{_FAKE}:FakeTensorMode.avoid_device_init",
    "makes fake tensors on a device that cannot be started",
    optional=True,
)
GPU_CONTEXT = _row(
    "context of the device",
    f"{_FAKE}:init_gpu_context",
    "makes fake tensors without a driver",
    optional=True,
)
# What torch says of its devices.
CUDA = {
    name: _row(f"torch.cuda.{name}", f"torch.cuda:{name}", "answers for the GPU that is not there")
    for name in (
        *("is_available", "device_count", "current_device", "set_device", "device", "_DeviceGuard", "synchronize"),
        *("get_device_properties", "get_device_capability", "get_device_name", "get_arch_list", "mem_get_info"),
        *("is_bf16_supported", "is_tf32_supported", "is_initialized", "_lazy_init", "current_stream", "empty_cache"),
        *("is_current_stream_capturing", "_exchange_device", "_maybe_exchange_device", "memory_stats_as_nested_dict"),
        *(
            "memory_allocated",
            "memory_reserved",
            "get_per_process_memory_fraction",
            "get_rng_state",
            "set_rng_state",
            "Stream",
            "Event",
            "stream",
        ),
    )
}
INTERFACE = {
    name: _row(f"Dynamo's {name} of CUDA", f"{_INTERFACE}.{name}", "answers for the GPU that is not there")
    for name in (
        *("device_count", "current_device", "set_device", "device", "synchronize", "get_device_properties"),
        *("current_stream", "exchange_device", "maybe_exchange_device", "memory_allocated", "is_bf16_supported"),
        *("get_raw_stream", "is_triton_capable", "raise_if_triton_unavailable"),
        *("Worker.get_device_properties", "Worker.current_device"),
    )
}
GENERATORS = _row(
    "generators",
    "torch.cuda:default_generators",
    "gives recomputed dropout under checkpoints a state to draw from",
)
RAW_STREAM = _row(
    "raw stream",
    "torch._C:_cuda_getCurrentRawStream",
    "answers emitted code, which launches kernels on it",
    optional=True,
)
ACCELERATOR_INDEX = _row(
    "index of the accelerator", "torch.accelerator:current_device_index", "answers for the GPU that is not there"
)
AUTOCAST = _row(
    "autocast's check", "torch.cuda.amp.common:amp_definitely_not_available", "allows autocast on the device"
)
CONSTANTS = _row(
    "constants in traces",
    "torch.fx.experimental.proxy_tensor:unset_fake_temporarily",
    "computes constants on the CPU while a graph is traced",
    ((),),
)
# Inductor.
CONSTANT_FOLDING = _row(
    "constant folding",
    "torch._inductor.constant_folding:ConstantFolder.run",
    "computes constants on the CPU",
)
GENERATION = _row(
    "generation of code",
    "torch._inductor.compile_fx:_compile_fx_inner",
    "makes what it only looks at on the CPU, where the program's default device is the GPU",
)
PADDING = _row(
    "padding of products",
    "torch._inductor.fx_passes.pad_mm:_pad_mm_init",
    "looks for no products to pad, since there is no device to time them on",
)

PAPER_PATCHES = (
    *(ENGINE, FAKE_TENSOR, FAKE_MODE, FUNCTIONAL_TENSOR, FUNCTIONAL_MODE, PROXY_MODE, FUNCTIONAL_DEVICE),
    *(AVOID_DEVICE, GPU_CONTEXT, *CUDA.values(), *INTERFACE.values(), GENERATORS, RAW_STREAM, ACCELERATOR_INDEX),
    *(WRAPPERS, AUTOCAST, FUNCTION_BACKWARD, ENGINE_CALLBACKS, MESH, MESH_TENSOR, MESH_GROUPS, MESH_PARTS),
    *(CONSTANTS, CONSTANT_FOLDING, GENERATION, PADDING, SWAP, TRUNCATED_NORMAL),
)
"""Every row."""
