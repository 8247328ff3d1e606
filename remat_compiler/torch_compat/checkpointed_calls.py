"""Calls within regions of `torch.utils.checkpoint`: those of the forward, and those that compute the region again.

Such a region is called twice, and both calls must save the same tensors, one by one.  So what is compiled may not
become other code in between, though plans do, as a step comes to be known.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from torch._C import _autograd as _hooks

_top_hooks: Callable[[bool], Any] = _hooks._top_saved_tensors_default_hooks
_CALLS = "_remat_calls"


def may_be_in_region() -> bool:
    """Whether tensors that autograd saves are hooked, as they are in such a region; cheap."""
    return _top_hooks(True) is not None


def run_in_region(graph: object, run: Callable[[], Any], latest: Callable[[], Any], arguments: Any) -> Any:
    """Call a graph; where a region is computed again, by the code that its call in the forward ran.

    Args:
        graph: What tells the graph from others of the region.
        run: Calls it as it is now.
        latest: The code that such a call ran.
        arguments: Of the call.
    """
    region = _region()
    if region is None:
        return run()
    frame, again = region
    calls: list[tuple[object, Any]]
    calls, places = vars(frame).setdefault(_CALLS, ([], dict[Hashable, int]()))
    if again is None:
        outputs = run()
        calls.append((graph, latest()))
        return outputs
    place = places[again] = places.get(again, -1) + 1
    made, code = calls[place] if place < len(calls) else (None, None)
    return code(*arguments) if code is not None and made is graph else run()


def _region() -> tuple[Any, Hashable] | None:
    """The innermost region that is run, and which time it is computed again; `None` for the latter in the forward."""
    pair = _top_hooks(True)
    if pair is None:
        return None
    pack = getattr(pair[0], "_torchdynamo_orig_callable", pair[0])
    if not getattr(pack, "__qualname__", "").startswith(("_checkpoint_hook.", "_recomputation_hook.")):
        return None
    held = dict(zip(pack.__code__.co_freevars, (cell.cell_contents for cell in pack.__closure__ or ())))
    if "frame" in held:
        return held["frame"], None
    frame = held["target_frame_ref"]() if "target_frame_ref" in held else None
    return None if frame is None else (frame, held.get("gid", 0))
