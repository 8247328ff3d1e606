"""The cost table of a captured graph, by the cost model that the user chose."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from remat_compiler.costs.links import links_to
from remat_compiler.costs.measured import measured_times
from remat_compiler.costs.op_call import tensors_in
from remat_compiler.costs.rates import NOMINAL, rates_of
from remat_compiler.costs.roofline import Roofline
from remat_compiler.costs.traffic import CapturedOps
from remat_compiler.ir.problem import CostTable
from remat_compiler.offload.place import Place


def cost_table(
    captured: CapturedOps,
    workspace_bytes: tuple[int, ...],
    cost_model: str,
    directory: Path | None,
    place: Place | None = None,
) -> CostTable:
    """Time and workspace of every operator, and of copies.

    Args:
        captured: The step.
        workspace_bytes: Workspace of each operator.
        cost_model: One of `options.COST_MODELS`.
        directory: Where measurements are kept between processes; `None` keeps them for this process only.
        place: Where values may be moved to; `None` for nowhere.
    """
    roofline = Roofline(captured, directory, NOMINAL if cost_model == "nominal" else None)
    if cost_model == "measured":
        times, provenance = measured_times(captured, roofline, directory)
    else:
        ops = range(len(captured.main))
        times, provenance = [roofline.time_ns(op) for op in ops], [roofline.provenance(op) for op in ops]
    kinds = {value.device.type for node in captured.main for value in tensors_in(node.meta.get("val"))}
    links = links_to(place, kinds, cost_model, directory)
    return CostTable(tuple(times), workspace_bytes, tuple(provenance), links)


def cost_identity(
    cost_model: str, device_types: Iterable[str], directory: Path | None, place: Place | None = None
) -> str:
    """Text that is equal if the same graph gets the same times; a plan is the best one only under these times.

    Calibrates devices whose rates are unknown.  Times of single operators (``measured``) are not part of the text:
    each is measured once and kept next to the rates.

    Args:
        cost_model: One of `options.COST_MODELS`.
        device_types: Devices that the graph computes on.
        directory: Where rates are kept, as in `cost_table`.
        place: Where values may be moved to, as in `cost_table`.
    """
    kinds = sorted(set(device_types))
    links = links_to(place, kinds, cost_model, directory)
    # The same on every machine, so no device needs to be calibrated.
    if cost_model == "nominal":
        return repr((cost_model, NOMINAL, *links))
    return repr((cost_model, [(kind, rates_of(kind, directory)) for kind in kinds], *links))
