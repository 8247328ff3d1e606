"""A row of the table of operators: what its columns mean."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

NOTHING = "nothing"
"""A workspace of no bytes, whatever the arguments."""


@dataclass(frozen=True, slots=True)
class Row:
    """Facts about operators that are alike in all of them.

    Attributes:
        names: Operators, with spaces between: ``mm`` of aten, ``ns::name`` of other namespaces, ``ns::name.overload``
            where overloads differ.  ``_foreach_*`` means all that begin so and have no row of their own.  A row holds
            for forms in place, too, whose names end with ``_``, unless they have one of their own.
        loop: What Inductor makes of it; a loop over ``windows`` reads its arguments from memory.  Empty: a view by its
            schema, pointwise or a reduction by torch's tags, pointwise by the list of torch's partitioner, else a
            kernel.
        elementwise: Whether each element of its result is computed from those at the same place of its arguments, as of
            all operators that torch's tags call pointwise; a loop may be pointwise and move elements.
        safe: Whether it may run on made-up values while a program is compiled; pointwise ones may besides.  It reads no
            index, length, seed or pointer from a value, as the backward of oneDNN's LSTM does from what its forward
            kept, and fractional pooling from its samples: a made-up one could end the process.  It has no effect, and
            does not communicate.
        cpu: Bytes that it takes inside on a CPU, beside its results: `NOTHING`, or a closed form's name in
            `costs/index_workspace`.  Empty: measured if safe; else as `one_piece` says, or seen as the program runs it.
        one_piece: Positions, among its tensors, of those that it copies on a CPU if they do not lie in one piece.
        cuda: As `cpu`, on a GPU where it is not measured: `NOTHING`, or a closed form's name in `costs/cuda_workspace`.
        keeps: Whether the library that runs it on a GPU keeps a workspace, once for each thread, see `costs/libraries`.
        in_steps: Whether it is pointwise, but computes values in between, which take memory.
        evaluations: Arithmetic of one element in evaluations of erf, as a kernel of torch.  `None`: as little as that
            of a multiplication.
        loop_evaluations: The same in Inductor's loops; `None` if it is the same.
        gpu_evaluations: The same on a GPU, likewise.
        looks_up: Whether it reads no more bytes of its first argument than it returns.
        result: How the real result differs from that of torch's shape function.  ``shrunk input``: on a CPU its storage
            is as large as the first argument, if that is larger.  ``shrunk terms``: a loss that is summed or averaged
            keeps the storage of all its terms.  ``seed on CPU``: so are the third and the fourth result.  ``types``: on
            a CPU some results of a normalisation have other types; ``and layout``: the first has another one, too.
        scatters_into: The view that a scatter writes to, in a copy of the storage of its first argument.
        by_place: Whether it finds elements by their places in the storage of its first argument.
        dear: Whether Inductor's rules for CPUs count it as dear, see `capture/inlining`.
        index_operators: Operators that it adds to a loop of Inductor's, with those on indices.
        same_order: Whether it is a view whose elements are read one after the other as before.
        may_copy: Whether it is a view that copies if the layout does not allow one.
        same_values: Whether it returns the values of its first argument: copied, as another type, or padded.
        fills_first: Whether Inductor makes its result by changing memory that it has filled before.
        collective: Of a functional collective: ``wait`` returns its argument, once the collective that makes it is
            complete; ``gather``, given a part, the number of ranks and the group, returns the parts of all ranks of
            the group, one after another; ``scatter``, given the whole, the reduction, the number and the group, returns
            this rank's part of a sum over ranks.
        seeds: Whether it draws seeds, or is given one, from which Inductor computes random numbers by their positions.
        runs: What a higher-order operator runs: another operator, with a random state saved or set or in the order of
            effects; or graphs, each a number of times that no value decides, or until a value ends the loop.
        is_functional: Whether a higher-order operator writes results of its own, and does nothing else but what its
            graphs do.
        overwriting: Why its form that overwrites an argument is not as good.  ``composed``: it is made of others, and
            the memory between these is not saved.  ``rounds number``: in place it rounds its number to the tensor's
            type before it uses it, else to the type that it computes in.
    """

    names: str
    _: KW_ONLY
    loop: Literal["", "view", "pointwise", "reduction", "windows", "scatter"] = ""
    elementwise: bool = False
    safe: bool = False
    cpu: str = ""
    one_piece: tuple[int, ...] = ()
    cuda: str = ""
    keeps: bool = False
    in_steps: bool = False
    evaluations: float | None = None
    loop_evaluations: float | None = None
    gpu_evaluations: float | None = None
    looks_up: bool = False
    result: Literal["", "shrunk input", "shrunk terms", "seed on CPU", "types", "types and layout"] = ""
    scatters_into: str = ""
    by_place: bool = False
    dear: bool = False
    index_operators: int = 1
    same_order: bool = False
    may_copy: bool = False
    same_values: bool = False
    fills_first: bool = False
    collective: Literal["", "wait", "gather", "scatter"] = ""
    seeds: Literal["", "drawn", "given"] = ""
    runs: Literal["", "with random state", "in order of effects", "graphs", "graphs in a loop"] = ""
    is_functional: bool = False
    overwriting: Literal["", "composed", "rounds number"] = ""
