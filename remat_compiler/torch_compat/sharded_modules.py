"""Memory that modules sharded by FSDP2 (`torch.distributed.fsdp.fully_shard`) hold at a moment, by their states."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch

from remat_compiler.step_model.sharding import Seen, ShardedGroup
from remat_compiler.torch_compat.tensors import address_of, dense_parts, storages_of

_STATES = "torch.distributed._composable_state"
_SHARDED = "torch.distributed.fsdp._fully_shard"


def sharded_now(arguments: Iterable[Any] = ()) -> Seen | None:
    """What sharded modules hold now; `None` if no module is sharded.

    Args:
        arguments: Arguments of a graph: the parameters among them tell which groups are its own.
    """
    groups = _groups()
    if not groups:
        return None
    given = {id(argument) for argument in arguments}
    of = [(one, [p for p in one.fsdp_params if hasattr(p, "_unsharded_param")]) for one in groups]
    own = [one for one, parameters in of if any(id(p._unsharded_param) in given for p in parameters)]
    gathered = [one for one, parameters in of if _num_bytes(_gathered(parameters))]
    whole = [one for one, parameters in of if _num_bytes(_gradients(parameters))]
    contexts = {id(one.comm_ctx): one.comm_ctx for one in groups}.values()
    return Seen(
        own=frozenset(map(_described, own)),
        parameter_bytes=_num_bytes(tensor for _, parameters in of for tensor in _gathered(parameters)),
        flat_bytes=_num_bytes(itertools.chain(map(_pending, groups), map(_flat_kept, contexts))),
        scatter_bytes=_num_bytes(
            itertools.chain(
                itertools.chain.from_iterable(map(_scatters_kept, contexts)),
                itertools.chain.from_iterable(map(_reduced, groups)),
            )
        ),
        gathered=frozenset(map(_described, gathered)),
        whole=frozenset(map(_described, whole)),
    )


def sharded_groups() -> list[ShardedGroup]:
    """The groups of parameters of all sharded modules, each to be gathered by itself."""
    return [_described(one) for one in _groups()]


@dataclass(frozen=True, slots=True)
class ShardedGradients:
    """Gradients of sharded parameters that the whole parameters do not have themselves.

    Attributes:
        whole: By the identity of the whole parameter: bytes in the type that gradients are reduced in.
        shards: By the number of the group: bytes of this rank's part.
    """

    whole: dict[int, int]
    shards: dict[int, int]


def sharded_gradients(leaves: Collection[int]) -> ShardedGradients:
    """Gradients that sharded modules keep for some whole parameters, which are named by their identity."""
    found = ShardedGradients({}, {})
    for group in _groups():
        own = [one for one in group.fsdp_params if id(getattr(one, "_unsharded_param", None)) in leaves]
        for one in own:
            if one.unsharded_accumulated_grad is not None:
                found.whole[id(one._unsharded_param)] = _num_bytes([one.unsharded_accumulated_grad])
        # Gradients that are offloaded lie on the host.
        size = _num_bytes(one.sharded_param.grad for one in own if not _is_brought(one, group))
        if size:
            found.shards[_described(group).number] = size
    return found


def gathered_parameters() -> list[torch.Tensor]:
    """Whole parameters of sharded modules, whose storages are empty while they are not gathered."""
    return [tensor for group in _groups() for one in group.fsdp_params for tensor in one.all_gather_outputs]


def offloaded_parameters() -> list[torch.Tensor]:
    """This rank's parts of parameters that lie on the host, and are brought to the device to be gathered."""
    return [one.sharded_param for group in _groups() for one in group.fsdp_params if _is_brought(one, group)]


def bucket_bytes() -> int:
    """Bytes of gradients that the buckets of the running `DistributedDataParallel` hold once more; 0 outside of one."""
    model = _averaged_module()
    # Else gradients are views of the buckets, which are there in their place.
    if model is None or model.gradient_as_bucket_view:
        return 0
    return _num_bytes(one for one in model._module_parameters if one.requires_grad)


def gradients_are_averaged() -> bool:
    """Whether a `DistributedDataParallel` is running, which averages gradients over ranks once they are there."""
    return _averaged_module() is not None


def _averaged_module() -> Any:
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    return None if parallel is None else parallel.DistributedDataParallel._get_active_ddp_module()


def _groups() -> list[Any]:
    # Nothing is sharded in a process that never imported what shards.
    if _SHARDED not in sys.modules:
        return []
    states = (ref() for ref in tuple(sys.modules[_STATES]._module_state_mapping.values()))
    found: dict[int, Any] = {}
    for state in states:
        # Several modules may have one state; before torch 2.13 a state had one group, or none.
        several = getattr(state, "_fsdp_param_groups", None)
        one = getattr(state, "_fsdp_param_group", None) if several is None else None
        for group in several if several is not None else [] if one is None else [one]:
            found[id(group)] = group
    return list(found.values())


def _described(group: Any) -> ShardedGroup:
    number = _numbers.get(group)
    if number is None:
        number = _numbers[group] = next(_next_number)
    ranks = getattr(group.mesh_info, "shard_mesh_size", 1)
    flat = copied = parameters = gradients = scatter = output = cast = left = 0
    for one in group.fsdp_params:
        # The types are only known once the first forward has begun.
        kept = one.sharded_param.dtype
        used = getattr(one, "param_dtype", None) or kept
        part = one._sharded_param_data.numel()
        parameters += part * ranks * used.itemsize
        # A single rank has nothing to gather.
        if ranks > 1:
            flat += part * ranks * used.itemsize
            copied += 0 if used is kept and not _is_brought(one, group) else part * used.itemsize
        if one.sharded_param.requires_grad:
            reduced = getattr(one, "reduce_dtype", None) or used
            size = getattr(one, "_orig_size", None)
            gradients += (part * ranks if size is None else size.numel()) * used.itemsize
            scatter += part * ranks * reduced.itemsize
            output += part * reduced.itemsize
            cast += 0 if reduced is kept else part * kept.itemsize
            left += 0 if _is_brought(one, group) else part * kept.itemsize
    filling = _filling_bytes(group) if ranks == 1 else 0
    return ShardedGroup(number, flat, copied, parameters, gradients, scatter, output, cast, left, filling)


def _is_brought(one: Any, group: Any) -> bool:
    """Whether this rank's part of a parameter, and of its gradient, lies on the host while the device works."""
    return bool(one.offload_to_cpu) and group.device.type != "cpu"


def _filling_bytes(group: Any) -> int:
    """Most bytes beyond the whole parameters, while a single rank copies one after the other from its parts."""
    filled = before = most = 0
    for one in group.fsdp_params:
        kept, count = one.sharded_param.dtype, one._sharded_param_data.numel()
        used = getattr(one, "param_dtype", None) or kept
        brought = count * kept.itemsize if _is_brought(one, group) else 0
        cast = 0 if used is kept else count * used.itemsize
        # What the parameter before was copied from is let go of once there is another.
        most = max(most, filled + before + brought + cast)
        before = cast or brought
        filled += count * used.itemsize
        most = max(most, filled + before)
    return most - filled


def _gathered(parameters: Sequence[Any]) -> Iterator[torch.Tensor]:
    for one in parameters:
        yield from one.all_gather_outputs
        # Kept by fewer ranks between forward and backward: a part of its own.
        part = getattr(one, "_sharded_post_forward_param_data", None)
        if part is not None:
            yield part


def _gradients(parameters: Sequence[Any]) -> Iterator[torch.Tensor]:
    for one in parameters:
        for gradient in (one._unsharded_param.grad, one.unsharded_accumulated_grad):
            if gradient is not None:
                yield gradient


def _pending(group: Any) -> torch.Tensor | None:
    """Output of a gather of this group that is under way."""
    return None if group._all_gather_result is None else _plain(group._all_gather_result.all_gather_output)


def _flat_kept(context: Any) -> torch.Tensor | None:
    """Output of the latest gather in a forward, which is let go of once the next one has begun."""
    state = context.all_gather_state
    return None if state is None else _plain(state.all_gather_result.all_gather_output)


def _scatters_kept(context: Any) -> Iterator[torch.Tensor]:
    one = getattr(context, "reduce_scatter_state", None)  # before torch 2.13
    for state in [*getattr(context, "reduce_scatter_states", ()), *([] if one is None else [one])]:
        yield state.reduce_scatter_input


def _reduced(group: Any) -> Iterator[torch.Tensor]:
    """Gradients that are reduced in part, and what is alive until a reduction between replicas has ended."""
    if group._partial_reduce_output is not None:
        yield group._partial_reduce_output
    state = getattr(group, "_all_reduce_state", None)
    # Where no type changes, it became this rank's part of the gradients, which counts as that.
    own = storages_of(one.sharded_param.grad for one in group.fsdp_params)
    if state is not None and not storages_of([state.all_reduce_input]) <= own:
        yield state.all_reduce_input


def _plain(value: Any) -> torch.Tensor | None:
    return value if isinstance(value, torch.Tensor) else None


def _num_bytes(tensors: Iterable[torch.Tensor | None]) -> int:
    """Bytes of the storages of tensors, each counted once."""
    parts = (part for tensor in tensors if tensor is not None for part in dense_parts(tensor))
    return sum({address_of(part): part.untyped_storage().nbytes() for part in parts}.values())


_numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_next_number = itertools.count()
