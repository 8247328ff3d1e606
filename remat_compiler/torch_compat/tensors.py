"""Tensors and their storages, whatever subclass wraps them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
import torch._dynamo.convert_frame
from torch._subclasses.fake_tensor import is_fake
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from remat_compiler.torch_compat.paper_device import is_on_paper


def any_fake(arguments: Iterable[Any]) -> bool:
    """Whether a call has fake tensors: it is made to learn the shapes of its results, not to compute them."""
    return any(isinstance(value, torch.Tensor) and is_fake(value) for value in arguments)


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether a tensor is made up of others, as a DTensor is of its local one."""
    return bool(is_traceable_wrapper_subclass(tensor))


def is_wrapper_class(kind: type) -> bool:
    """Whether tensors of this class are made up of others."""
    return hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")


def wrapped_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors that make up a tensor; the tensor itself if it wraps none."""
    if not is_wrapper(tensor):
        return [tensor]
    wrapper: Any = tensor
    names, _ = wrapper.__tensor_flatten__()
    inner = [getattr(wrapper, name) for name in names]
    # Subclasses nest, so their parts are taken apart in turn.
    return [part for one in inner if isinstance(one, torch.Tensor) for part in wrapped_tensors(one)]


def wrapped_again(
    tensor: torch.Tensor, replaced: Callable[[torch.Tensor], torch.Tensor], number: Callable[[Any], Any]
) -> torch.Tensor:
    """A tensor like a wrapper, made up of others than it; it requires no gradient.

    Args:
        tensor: The wrapper, or a plain tensor.
        replaced: The tensor that takes the place of each plain one.
        number: The number that takes the place of each size and stride of wrappers.
    """
    if not is_wrapper(tensor):
        return replaced(tensor)
    wrapper: Any = tensor
    names, context = wrapper.__tensor_flatten__()
    parts = {name: getattr(wrapper, name) for name in names}
    for name, part in parts.items():
        # A wrapper may hold more than tensors, such as the mesh of its devices.
        if isinstance(part, torch.Tensor):
            parts[name] = wrapped_again(part, replaced, number)
    size, stride = torch.Size(map(number, wrapper.shape)), tuple(map(number, wrapper.stride()))
    made: torch.Tensor = type(wrapper).__tensor_unflatten__(parts, context, size, stride)
    # The context of a wrapper may have it otherwise.
    return made.requires_grad_(False)


def dense_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors with memory of their own that make up a tensor: those within a subclass, or within a sparse tensor.

    None if there is no memory (fake tensors, but on paper, where they stand for the user's), or its address cannot be
    known.
    """
    if is_wrapper(tensor):
        return [part for one in wrapped_tensors(tensor) for part in dense_parts(one)]
    if tensor.layout is torch.sparse_coo:
        return [*dense_parts(tensor._indices()), *dense_parts(tensor._values())]
    # Other layouts hide their memory, and some wrappers have no storage at all.
    opaque = tensor.layout is not torch.strided or tensor.device.type == "meta"
    pretended = is_fake(tensor) and not is_on_paper()
    return [] if opaque or pretended or not torch._C._has_storage(tensor) else [tensor]


def address_of(part: torch.Tensor) -> int:
    """Address of the storage of one of the `dense_parts`; not that of its data, which is none on paper."""
    address: int = part.untyped_storage()._cdata
    return address


def storages_of(values: Iterable[Any]) -> set[int]:
    """Addresses of the storages of the tensors among `values`."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return {address_of(part) for tensor in tensors for part in dense_parts(tensor)}


def watched_storages(values: Iterable[Any], but: Collection[int]) -> list[StorageWeakRef]:
    """Weak references to the storages of the tensors among `values`, without those at the addresses `but`."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    parts = {address_of(part): part for tensor in tensors for part in dense_parts(tensor)}
    return [_watched(part.untyped_storage()) for address, part in parts.items() if address not in but]


_watched: Callable[[Any], StorageWeakRef] = StorageWeakRef

WatchedSizes = Sequence[tuple[Any, int]]
"""Weak references to storages, each with its bytes."""


def watched_sizes(values: Iterable[Any]) -> WatchedSizes:
    """Weak references to the storages of the tensors among `values`, each once, with their bytes."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    parts = {address_of(part): part.untyped_storage() for tensor in tensors for part in dense_parts(tensor)}
    return [(_watched(storage), storage.nbytes()) for storage in parts.values()]


def num_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements; of a subclass, those of its parts."""
    return sum(part.numel() * part.element_size() for part in dense_parts(tensor))


def casts_gradient(leaf: torch.Tensor) -> bool:
    """Whether autograd casts the gradients of a leaf before it adds them up, as ``leaf.grad_dtype`` says."""
    # `None` stands for any type.
    return leaf.is_leaf and leaf.grad_dtype not in (None, leaf.dtype)


def needs_gradients(example_inputs: Any) -> bool:
    """Whether AOTAutograd compiles a backward for these inputs, as far as the inputs show."""
    return torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs)
