"""The inner compiler that executes FX graphs node by node."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.custom_graph_pass import CustomPartitionerFn

from remat_compiler.torch_compat.forward_arguments import stop_at_forward
from remat_compiler.torch_compat.returned_inputs import keep_returned_inputs
from remat_compiler.torch_compat.view_scatters import scattered, scatters_into_copy


def compile_with_interpreter(
    gm: fx.GraphModule,
    example_inputs: Any,
    partitioner: CustomPartitionerFn,
    listener: Callable[[InterpretedGraph], None] = lambda _: None,
) -> Any:
    """Compile Dynamo's graph with an FX interpreter that frees every value at its last use.

    Buffers are changed within the graph: changes by the wrapper around it are not planned, so not predicted.

    Args:
        gm: Dynamo's graph.
        example_inputs: Its inputs.
        partitioner: Cuts joint graphs.
        listener: Is told of each graph, and may put something else in place of what runs it.
    """

    def interpreted(is_backward: bool, module: fx.GraphModule, _: Any) -> Callable[[list[Any]], Any]:
        graph = InterpretedGraph(module, is_backward)
        listener(graph)

        def run(arguments: list[Any]) -> Any:
            stop_at_forward(arguments)
            return graph.current_call(arguments)

        # AOTAutograd hands over a list that is emptied, so that arguments can be freed at their last use.
        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    keep_returned_inputs()
    backend = aot_autograd(
        fw_compiler=partial(interpreted, False),
        bw_compiler=partial(interpreted, True),
        partition_fn=partitioner,
        keep_inference_input_mutations=True,
    )
    return backend(gm, example_inputs)


class InterpretedGraph:
    """A forward or a backward graph that is interpreted.

    Args:
        module: The graph.
        is_backward: Whether it is a backward.

    Attributes:
        current_call: What runs it; may be replaced.
    """

    def __init__(self, module: fx.GraphModule, is_backward: bool) -> None:
        self.module, self.is_backward = module, is_backward
        self.current_call: Callable[[list[Any]], Any] = partial(_interpret, module)


def _interpret(module: fx.GraphModule, arguments: list[Any]) -> Any:
    # An interpreter of its own for each call: it holds the values, and calls may overlap.
    return StepInterpreter(module).boxed_run(arguments)


class StepInterpreter(fx.Interpreter):
    """An interpreter for steps: it takes no part in tracing, and copies if a traced view cannot be made.

    Some operators give results another layout than torch traced, batch norm of a transposed input for example.
    Scatters that are marked for it copy no memory around their argument (`view_scatters`).
    """

    def run_node(self, n: fx.Node) -> Any:
        """The value of one node.

        torch's own method records the node as the one that is being traced, in a record that all threads share:
        another thread that traces at the same time would attach it to its own nodes.
        """
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if scatters_into_copy(n):
            return scattered(n.target, *args, **kwargs)
        return getattr(self, n.op)(n.target, args, kwargs)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The value of one call."""
        if target is not torch.ops.aten.view.default:
            return super().call_function(target, args, kwargs)
        value, shape = args
        try:
            return value.view(shape)
        except RuntimeError:
            return value.reshape(shape)
