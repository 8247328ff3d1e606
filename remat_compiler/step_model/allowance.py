"""The share of one graph in a budget that all graphs of a step have in common."""

from __future__ import annotations

from dataclasses import dataclass

from remat_compiler.step_model.graph_memory import GraphMemory


@dataclass(frozen=True, slots=True)
class Allowance:
    """The share of one graph, the same at all sizes.

    Attributes:
        limit_bytes: Most bytes alive while it runs.
        held_bytes: Most bytes alive between its forward and its backward, while other graphs run.
        left_bytes: Most bytes alive after its backward, while other graphs run, without the gradients in `passed`.
        passed: Positions of arguments whose gradients are counted by the graph that receives them.
        spare_bytes: Bytes beyond `limit_bytes` that the smallest peak may take at sizes that no plan fits.
    """

    limit_bytes: int
    held_bytes: int
    left_bytes: int
    passed: tuple[int, ...] = ()
    spare_bytes: int = 0

    @staticmethod
    def whole(limit_bytes: int, spare_bytes: int = 0) -> Allowance:
        """The allowance of a graph that has the budget to itself."""
        return Allowance(limit_bytes, limit_bytes, limit_bytes, spare_bytes=spare_bytes)

    @property
    def is_whole(self) -> bool:
        """Whether only the peak is limited: the limits of the held and the left bytes never bind."""
        # Neither part can exceed the peak, so a limit at or above that of the peak never binds.
        return min(self.held_bytes, self.left_bytes) >= self.limit_bytes

    @property
    def between_bytes(self) -> int:
        """Bytes of `limit_bytes` that must be free between forward and backward."""
        return max(self.limit_bytes - self.held_bytes, 0)

    @property
    def memory(self) -> GraphMemory:
        """The largest memory that keeps to this allowance."""
        # One limit covers both parts of the step, so either may reach it.
        return GraphMemory(self.limit_bytes, self.held_bytes, self.limit_bytes, self.left_bytes)

    def needed_bytes(self, memory: GraphMemory, passed_bytes: int = 0) -> int:
        """Bytes that stay within `limit_bytes` if, and only if, `memory` keeps to the allowance.

        Args:
            memory: Memory of the graph.
            passed_bytes: Bytes of the gradients of the arguments in `passed`.
        """
        left_bytes = memory.left_bytes - passed_bytes
        # By how much a held part is too large; 0 or less exactly if both keep to their limits.
        over = max(memory.held_bytes - self.held_bytes, left_bytes - self.left_bytes)
        return max(memory.peak_bytes, self.limit_bytes + over)

    def within(self, other: Allowance) -> Allowance:
        """The largest allowance that keeps to both this one and `other`."""
        return Allowance(
            min(self.limit_bytes, other.limit_bytes),
            min(self.held_bytes, other.held_bytes),
            min(self.left_bytes, other.left_bytes),
            # Only gradients that both count elsewhere may be left out here.
            tuple(argument for argument in self.passed if argument in other.passed),
            # Where one kind of step must not refuse a size for gradients from before it, none may.
            max(self.spare_bytes, other.spare_bytes),
        )

    def grown_to(self, memory: GraphMemory) -> Allowance:
        """The smallest allowance that includes this one and to which `memory` keeps."""
        return Allowance(
            max(self.limit_bytes, memory.peak_bytes),
            max(self.held_bytes, memory.held_bytes),
            max(self.left_bytes, memory.left_bytes),
            self.passed,
        )
