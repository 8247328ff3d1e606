"""What one graph may take of a budget that it shares with the other graphs of its step."""

from __future__ import annotations

from dataclasses import dataclass

from remat_compiler.simulate.step_peak import GraphMemory


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one graph may take at any sizes.

    Attributes:
        limit_bytes: Most bytes while it runs.
        held_bytes: Most bytes between its forward and its backward, while others run.
        left_bytes: Most bytes after its backward, while others run, but for `passed`.
        passed: Positions of arguments whose gradients count with the graph that they are handed to.
    """

    limit_bytes: int
    held_bytes: int
    left_bytes: int
    passed: tuple[int, ...] = ()

    @staticmethod
    def whole(limit_bytes: int) -> Allowance:
        """That of a graph which shares its budget with none."""
        return Allowance(limit_bytes, limit_bytes, limit_bytes)

    @property
    def is_whole(self) -> bool:
        """Whether only the peak counts, below which all else is."""
        return min(self.held_bytes, self.left_bytes) >= self.limit_bytes

    @property
    def between_bytes(self) -> int:
        """What is to be left of `limit_bytes` between forward and backward."""
        return max(self.limit_bytes - self.held_bytes, 0)

    @property
    def memory(self) -> GraphMemory:
        """The most that a graph takes that keeps to it."""
        return GraphMemory(self.limit_bytes, self.held_bytes, self.limit_bytes, self.left_bytes)

    def needed_bytes(self, memory: GraphMemory, passed_bytes: int = 0) -> int:
        """Bytes that stay within `limit_bytes` if, and only if, `memory` keeps to the allowance.

        Args:
            memory: What the graph takes.
            passed_bytes: The gradients of the arguments in `passed`.
        """
        left_bytes = memory.left_bytes - passed_bytes
        over = max(memory.held_bytes - self.held_bytes, left_bytes - self.left_bytes)
        return max(memory.peak_bytes, self.limit_bytes + over)

    def within(self, other: Allowance) -> Allowance:
        """What keeps to both."""
        return Allowance(
            min(self.limit_bytes, other.limit_bytes),
            min(self.held_bytes, other.held_bytes),
            min(self.left_bytes, other.left_bytes),
            tuple(argument for argument in self.passed if argument in other.passed),
        )

    def grown_to(self, memory: GraphMemory) -> Allowance:
        """The least allowance above this one that `memory` keeps to."""
        return Allowance(
            max(self.limit_bytes, memory.peak_bytes),
            max(self.held_bytes, memory.held_bytes),
            max(self.left_bytes, memory.left_bytes),
            self.passed,
        )
