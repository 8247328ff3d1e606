"""The storages that each layer of the model saves; a collector measures them, and `Mimose` chooses layers by them.

layer            encoder.layer.0          encoder.layer.1          a gap has none
storages         12 14 15 19              27 29 30 34              made in it, read by no other layer
"""

from __future__ import annotations

from dataclasses import dataclass

SEGMENT = "segment "
"""First word of the names of layers that are not modules."""


@dataclass(frozen=True, slots=True)
class SavedLayer:
    """One layer of a forward, with the storages that it makes and no other layer reads.

    Attributes:
        name: Its module path, or ``segment 3``.
        storages: The storages that are not saved if the layer is recomputed.
        size_bytes: Their bytes.
        checkpointed: Whether the user's checkpoints recompute a part of it already, which is then never saved.
    """

    name: str
    storages: tuple[int, ...]
    size_bytes: int
    checkpointed: bool


@dataclass(frozen=True, slots=True)
class SavedLayers:
    """The layers of a forward.

    Attributes:
        layers: The layers, in the order of the forward.
        place: For each operator of the graph, the position of its layer in `layers`; -1 in a gap and outside the
            forward.
    """

    layers: tuple[SavedLayer, ...]
    place: tuple[int, ...]

    @property
    def of_modules(self) -> bool:
        """Whether all layers are modules of the model, which are the same at all sizes; segments need not be."""
        return not any(layer.name.startswith(SEGMENT) for layer in self.layers)
