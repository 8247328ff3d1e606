"""The paper's checkpoint sets and peaks, from the sizes of the layers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remat_passes.chains.hong import Chain, dynamic_objective, select_linear, select_quadratic
from studies.hong.chain_tables import NETWORKS, PAPER_SETS, Row, checkpoints, main, table


@pytest.mark.parametrize("method", ["Algorithm 6", "Algorithm 3", "sqrt(n)"])
def test_vgg19_sets_in_the_papers_counting(method: str) -> None:
    assert checkpoints(NETWORKS["VGG-19"].counted, method) == PAPER_SETS["VGG-19"][method]


def test_alexnet_sets() -> None:
    """No single counting gives both: Algorithm 6 needs layers 9 and 10 at no bytes, Algorithm 3 needs them."""
    network, paper = NETWORKS["AlexNet"], PAPER_SETS["AlexNet"]
    assert checkpoints(network.counted, "Algorithm 6") == paper["Algorithm 6"]
    assert checkpoints(network.outputs, "Algorithm 3") == paper["Algorithm 3"]
    assert checkpoints(network.outputs, "sqrt(n)") == paper["sqrt(n)"]


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_the_papers_set_is_optimal_for_the_outputs_too(name: str) -> None:
    chain = Chain.of_sizes(NETWORKS[name].outputs)
    best = select_linear(chain).objective
    assert best == select_quadratic(chain).objective
    assert dynamic_objective(chain, PAPER_SETS[name]["Algorithm 6"]) == best


@pytest.mark.parametrize("row", table(), ids=lambda row: f"{row.model} {row.method}")
def test_predicted_peaks(row: Row) -> None:
    assert row.traced_mib == pytest.approx(row.paper_mib, rel=0.004)
    if row.equation_mib is not None and not (row.model.startswith("AlexNet") and row.method == "sqrt(n)"):
        assert row.equation_mib == pytest.approx(row.paper_mib, rel=0.003)


def test_everything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", str(tmp_path / "tables.json"), "--longest", "1000"]) == 0
    record = json.loads((tmp_path / "tables.json").read_text(encoding="utf-8"))
    assert len(record["rows"]) == len(table())
    assert set(record["solve_ms"]) == {"Algorithm 3", "Algorithm 5", "Algorithm 6"}
    assert "VGG-19, b=400" in capsys.readouterr().out


def test_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert main(["--plot", str(tmp_path / "tables.png"), "--longest", "1000"]) == 0
    assert (tmp_path / "tables.png").stat().st_size > 1000
