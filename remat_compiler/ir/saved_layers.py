"""What each layer of the model saves, as storages: what a collector measures, and what `Mimose` chooses layers by.

layer            encoder.layer.0          encoder.layer.1          a gap has none
storages         12 14 15 19              27 29 30 34              made in it, read by no other layer
"""

from __future__ import annotations

from dataclasses import dataclass

SEGMENT = "segment "
"""First word of the names of layers that are no modules."""


@dataclass(frozen=True, slots=True)
class SavedLayer:
    """One layer.

    Attributes:
        name: Its module path, or ``segment 3``.
        storages: Those that are not saved where the layer is made again.
        size_bytes: Their bytes.
        checkpointed: Whether the user has a part of it made again already, so that it is no longer there to be saved.
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
        place: For each operator of the graph, the position in `layers` of its layer; -1 in a gap, and outside of the
            forward.
    """

    layers: tuple[SavedLayer, ...]
    place: tuple[int, ...]

    @property
    def of_modules(self) -> bool:
        """Whether they are modules of the model, which are the same at all sizes; segments need not be."""
        return not any(layer.name.startswith(SEGMENT) for layer in self.layers)
