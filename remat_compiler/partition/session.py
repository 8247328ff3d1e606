"""The record through which a compilation and its partitioner exchange tables and results, around AOTAutograd.

AOTAutograd calls the partitioner, which is pickled into Inductor's configuration and named in its cache key, so it
holds plain data only.  Open files, tables and results pass through this record instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path

from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.distributed.agreement import Agreement, Alone
from remat_compiler.partition.candidate import Served
from remat_compiler.partition.result import Partition


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """One Dynamo graph's compilations.

    Attributes:
        directory: Folder of plans, measured times and rates; `None` to keep nothing.
        workspace: Measured workspaces.
        parameters: Digest of the shapes of the graph's parameters, see `graph_key.parameter_shapes`.
        inputs: Source of each input of Dynamo's graph, see `torch_compat.input_sources`.
        program: Digest of the options and versions that decide how the graph's collectives may be issued.
        agreement: Brings the ranks of a distributed job to the same plans.
        chunks: What each budget of a joint graph came to, see `in_chunks`, by what `partition` tells graphs apart by.
        partitions: The partition of each joint graph of the compilation under way, in order.
    """

    directory: Path | None = None
    workspace: WorkspaceTable = field(default_factory=WorkspaceTable)
    parameters: str = ""
    inputs: tuple[str, ...] = ()
    program: str = ""
    agreement: Agreement = field(default_factory=Alone)
    chunks: dict[tuple[object, ...], dict[int, Served]] = field(default_factory=dict)
    partitions: list[Partition] = field(default_factory=list)

    @contextmanager
    def compiling(self) -> Iterator[list[Partition]]:
        """One compilation: gives the list of the partitions that are made within the block, in order."""
        # A list of its own for each compilation: another of the same session may be under way.
        running = replace(self, partitions=[])
        token = _current.set(running)
        try:
            yield running.partitions
        finally:
            _current.reset(token)


def current_session() -> Session:
    """The session of this context; one that keeps nothing if there is none."""
    return _current.get() or Session()


# By context rather than by thread or module: threads that compile at the same time have sessions of their own.
_current: ContextVar[Session | None] = ContextVar("remat_session", default=None)
