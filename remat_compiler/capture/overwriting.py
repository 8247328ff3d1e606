"""The arguments that a pointwise operator may overwrite with its result, as far as the graph shows.

    y = addmm(...)         owns its memory
    v = view(y)            all of that memory
    z = relu(v)            may become relu_(v), if nothing reads the memory of y afterwards

Whether the memory dies there depends on the plan: `rewrite.overwriting` looks for that in finished graphs, and
`capture.in_place` for memory that dies under every plan.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass

from torch import fx
from torch._ops import OpOverload

from remat_compiler import torch_compat


@dataclass(frozen=True, slots=True, eq=False)
class Overwriting:
    """One argument that an operator may overwrite if its memory dies there.

    Attributes:
        root: The node that owns the memory.
        argument: The node that is given to the operator: the root, or a view of all of it.
        form: The operator that does it.
    """

    root: fx.Node
    argument: fx.Node
    form: torch_compat.OverwritingForm


def overwritings(node: fx.Node, roots: Mapping[fx.Node, fx.Node]) -> list[Overwriting]:
    """The arguments that `node` may overwrite, in order.

    Args:
        node: An operator.
        roots: The node that owns the memory of each node, see `storages.find_roots`.
    """
    target = node.target
    if node.op != "call_function" or not isinstance(target, OpOverload) or roots.get(node) is not node:
        return []
    found = []
    given = torch_compat.arguments_by_name(node)
    for position, schema in enumerate(target._schema.arguments):
        argument = given.get(schema.name)
        form = torch_compat.overwriting_form(target, position) if isinstance(argument, fx.Node) else None
        if form is None or not isinstance(argument, fx.Node):
            continue
        root = roots.get(argument)
        # Another argument in the same memory might be read at a place that has been overwritten already.
        sharing = [a for a in _tensors_of(node) if roots.get(a) is root]
        if root is not None and len(sharing) == 1 and _owns_memory(root) and _fits(root, argument, node):
            found.append(Overwriting(root, argument, form))
    return found


def _tensors_of(node: fx.Node) -> list[fx.Node]:
    """Nodes among the arguments, each as often as it is given."""
    given: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), given.append)
    return given


def _owns_memory(root: fx.Node) -> bool:
    """Whether the memory was made by an operator that is known to share it with no other.

    Inputs and constants belong to the caller: a backward that runs twice reads them again.  Operators of other
    libraries, collectives and copies beside the step may read or write it later than they return.
    """
    made_by, item = root, None
    if root.op == "call_function" and root.target is operator.getitem:
        made_by, item = root.args  # type: ignore[assignment]
        taken = [user.args[1] if user.target is operator.getitem else None for user in made_by.users]
        # A result that is taken out of the tuple twice stands in the graph as two roots, and a tuple holds all of its.
        if None in taken or taken.count(item) > 1:
            return False
    if made_by.op != "call_function" or not _is_plain(made_by.target):
        return False
    return torch_compat.is_laid_out_as_traced(made_by, item)


def _is_plain(target: object) -> bool:
    """Whether the operator is torch's own, and makes each result in memory of its own."""
    # Of an operator that writes where it is told, roots show this only for the first argument.
    return isinstance(target, OpOverload) and not target._schema.is_mutable and torch_compat.allocates_results(target)


def touches_plainly(user: fx.Node) -> bool:
    """Whether a reader is done with its arguments' memory when it returns, but for results that share it by schema."""
    if user.op != "call_function":
        return False
    return user.target is operator.getitem or (isinstance(user.target, OpOverload) and user.target.namespace == "aten")


def _fits(root: fx.Node, argument: fx.Node, result: fx.Node) -> bool:
    """Whether the argument is all of the memory, and equal indices of it and of the result lie at equal places."""
    whole, given, made = (torch_compat.plain_tensor(node.meta.get("val")) for node in (root, argument, result))
    if whole is None or given is None or made is None or whole.dtype != given.dtype:
        return False
    # A number that changes is a node here.
    number = result.args[1] if len(result.args) > 1 else None
    if not torch_compat.rounds_alike(result.target, number, given.dtype):  # type: ignore[arg-type]
        return False
    return torch_compat.is_whole_storage(given) and torch_compat.have_one_layout(given, made)
