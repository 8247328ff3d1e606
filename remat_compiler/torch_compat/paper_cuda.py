"""`torch.cuda`, Dynamo and Triton answer for a GPU that is not there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import torch
from torch._dynamo import device_interface, trace_rules

from remat_compiler.devices.gpus import Gpu
from remat_compiler.torch_compat.paper_rows import (
    ACCELERATOR_INDEX,
    AUTOCAST,
    AVOID_DEVICE,
    CUDA,
    GENERATORS,
    GPU_CONTEXT,
    INTERFACE,
    RAW_STREAM,
)
from remat_compiler.torch_compat.patching import replaced

_STATE_BYTES = 16
"""Bytes of the state of a CUDA generator: a seed and an offset."""
_WARP = 32
_REGISTERS = 65_536
_LEAST_BFLOAT16 = (8, 0)


class _NoSwitch:
    """`torch.cuda.device`, which has one device to switch to."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.idx = 0
        self.prev_idx = 0

    def __enter__(self) -> _NoSwitch:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Generator(torch.Generator):
    """The GPU's generator, from which nothing is drawn."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)

    def clone_state(self) -> _Generator:
        return _Generator()

    def graphsafe_get_state(self) -> _Generator:
        return self

    def graphsafe_set_state(self, _: torch.Generator) -> _Generator:
        return self


class _Stream:
    """A stream of the GPU, or an event on one: what is left to it is done at once."""

    cuda_stream = stream_id = device_index = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait_stream(self, _: object) -> None:
        """Nothing is under way."""

    wait_event = wait_stream

    def record_event(self, *_: object) -> _Stream:
        """An event that has come."""
        return self

    record = record_event

    def synchronize(self) -> None:
        """Nothing is under way."""

    wait = synchronize

    def query(self) -> bool:
        """Whether all is done."""
        return True


def enter_cuda(stack: ExitStack, gpu: Gpu) -> None:
    """Let `torch.cuda` and Dynamo answer for `gpu` until `stack` is closed."""
    # Dynamo knows torch's functions by identity: it must have seen the real ones.
    trace_rules.get_torch_obj_rule_map()
    answers = _answers(gpu)
    for name, row in CUDA.items():
        stack.enter_context(replaced(row, _always(answers[name])))
    for name, row in INTERFACE.items():
        stack.enter_context(replaced(row, _always(answers[_NAMES.get(name, name)])))
    stack.enter_context(replaced(GENERATORS, _always((_Generator(),))))
    stack.enter_context(replaced(RAW_STREAM, _always(lambda *_: 0)))
    stack.enter_context(replaced(ACCELERATOR_INDEX, _always(lambda: 0)))
    stack.enter_context(replaced(AUTOCAST, _always(lambda: False)))
    stack.enter_context(replaced(AVOID_DEVICE, _always(True)))
    stack.enter_context(replaced(GPU_CONTEXT, _always(lambda _: None)))
    # A CPU build registers no interface for CUDA.
    for name in ("cuda", "cuda:0"):
        device_interface.register_interface_for_device(name, device_interface.CudaInterface)


_NAMES = {
    "exchange_device": "_exchange_device",
    "maybe_exchange_device": "_maybe_exchange_device",
    "Worker.get_device_properties": "get_device_properties",
    "Worker.current_device": "current_device",
}
"""Answers of `torch.cuda` that Dynamo's interface has under another name."""


def _always(answer: Any) -> Callable[[Any], Any]:
    return lambda _: answer


def _answers(gpu: Gpu) -> dict[str, Any]:
    """What each function says, by name."""
    properties = _properties(gpu)
    major, minor = gpu.capability
    stream = _Stream()
    zero = ("current_device", "_exchange_device", "_maybe_exchange_device", "memory_allocated", "memory_reserved")
    nothing = ("set_device", "synchronize", "_lazy_init", "empty_cache", "set_rng_state", "raise_if_triton_unavailable")
    return {
        **{name: lambda *_, **__: 0 for name in (*zero, "get_raw_stream")},
        **{name: lambda *_, **__: None for name in nothing},
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_triton_capable": lambda *_: True,
        "is_current_stream_capturing": lambda: False,
        "device_count": lambda: 1,
        "device": _NoSwitch,
        "_DeviceGuard": _NoSwitch,
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: gpu.capability,
        "get_device_name": lambda *_: gpu.product,
        "get_arch_list": lambda: [f"sm_{major}{minor}"],
        # torch says yes on older GPUs, too, where it is slow; models ask so to choose their type.
        "is_bf16_supported": lambda *_, **__: gpu.capability >= _LEAST_BFLOAT16,
        "is_tf32_supported": lambda: gpu.capability >= _LEAST_BFLOAT16,
        "mem_get_info": lambda *_: (gpu.total_bytes, gpu.total_bytes),
        "get_per_process_memory_fraction": lambda *_: 1.0,
        "memory_stats_as_nested_dict": lambda *_: {},
        "get_rng_state": lambda *_: torch.zeros(_STATE_BYTES, dtype=torch.uint8, device="cpu"),
        "current_stream": lambda *_: stream,
        "Stream": _Stream,
        "Event": _Stream,
        "stream": lambda *_: stream,
    }


def _properties(gpu: Gpu) -> SimpleNamespace:
    """What `torch.cuda.get_device_properties` gives."""
    major, minor = gpu.capability
    return SimpleNamespace(
        name=gpu.product,
        major=major,
        minor=minor,
        total_memory=gpu.total_bytes,
        multi_processor_count=gpu.sms,
        regs_per_multiprocessor=_REGISTERS,
        warp_size=_WARP,
        max_threads_per_multi_processor=gpu.limits.threads,
        max_threads_per_block=1024,
        shared_memory_per_block=48 * 1024,
        shared_memory_per_block_optin=gpu.limits.optin_bytes,
        shared_memory_per_multiprocessor=gpu.limits.shared_bytes,
        L2_cache_size=gpu.l2_bytes,
        gcnArchName="",
        is_integrated=0,
        is_multi_gpu_board=0,
        uuid="paper",
        clock_rate=0,
        memory_clock_rate=0,
        memory_bus_width=0,
    )
