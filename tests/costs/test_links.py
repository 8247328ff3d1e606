"""How fast copies are: measured once, kept, and read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from remat_compiler.costs.links import NOMINAL, links_to
from remat_compiler.ir.plan import Tier
from remat_compiler.offload.place import Place


@pytest.mark.parametrize("place", ["host", "disk", "disk,direct"])
def test_a_link_is_measured_by_size_and_kept(place: str, tmp_path: Path) -> None:
    where, kept = Place.parse(f"{place}:{tmp_path}" if place != "host" else place), tmp_path / "kept"
    (link,) = links_to(where, ["cpu"], "roofline", kept)
    assert link.tier is where.tier
    sizes = [point.size_bytes for point in link.curve]
    assert sizes == sorted(set(sizes))
    for times in ([p.out_ns for p in link.curve], [p.back_ns for p in link.curve]):
        assert times == sorted(times)
        assert times[0] >= link.latency_ns > 0
    # A millisecond would be a copy that is waited for, or a disk.
    assert 1_000 < link.begin_ns < 1_000_000
    assert links_to(where, ["cpu"], "roofline", kept) == (link,)
    # No file is left behind.
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_nothing_is_measured_for_nominal_costs_or_without_a_place(tmp_path: Path) -> None:
    (link,) = links_to(Place.of(Tier.DISK, tmp_path / "nowhere"), ["cpu"], "nominal", None)
    assert (link.out_bytes_per_s, link.back_bytes_per_s, link.latency_ns) == NOMINAL[Tier.DISK]
    assert links_to(None, ["cpu"], "roofline", None) == ()
