"""How fast a rank receives what other ranks gather for it: declared, for to measure it takes all ranks at once.

    time_ns = latency_ns + bytes of the other ranks / bytes_per_s

Of GPUs the table has the bandwidth of NVLink, or else of PCI Express; ranks on several machines are connected by less,
which no rank can tell.  Compare plans by these times; they do not predict a step's.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.devices.gpus import Gpu


@dataclass(frozen=True, slots=True)
class Peers:
    """The link to the other ranks.

    Attributes:
        bytes_per_s: Bytes that a rank receives.
        latency_ns: Time of a gather of next to nothing.
    """

    bytes_per_s: float
    latency_ns: int


REACHED = 0.8
"""Part of a link's bandwidth that gathers reach; an assumption."""
GPU_LATENCY_NS = 20_000
"""Time of a small gather among the GPUs of a machine; an assumption."""
CPU_PEERS = Peers(1e9, 150_000)
"""Two gloo processes on one machine, as measured once at 4 MiB and at 16 KiB."""
NOMINAL_PEERS = Peers(1e9, 10_000)
"""The same for every machine."""


def peers_of(gpu: Gpu | None) -> Peers:
    """The link of GPUs of one kind; of one that no table has, as nominal."""
    rate = 0.0 if gpu is None else gpu.peer_bytes_per_s or gpu.link_bytes_per_s
    return Peers(REACHED * rate, GPU_LATENCY_NS) if rate else NOMINAL_PEERS


def received_bytes(node: fx.Node) -> int | None:
    """Bytes that a node gathers from the other ranks; `None` if it is no gather."""
    if torch_compat.facts_of(node.target).collective != "gather":
        return None
    ranks, value = node.args[1], node.meta.get("val")
    if not isinstance(ranks, int) or value is None:
        return None
    whole_bytes: int = torch_compat.size_hint(value.numel()) * value.element_size()
    return whole_bytes * (ranks - 1) // ranks
