"""The table of GPUs: complete, found by the names that people use, and within what hardware can be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from remat_compiler.devices.gpus import GPUS, Gpu, gpu_like, gpu_named
from remat_compiler.errors import UnknownName


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_a_data_sheet_is_whole(gpu: Gpu) -> None:
    assert set(gpu.flops_per_s) == {"float64", "float32", "tf32", "float16", "bfloat16"}
    assert gpu.flops_per_s["float64"] <= gpu.flops_per_s["float32"] <= gpu.flops_per_s["tf32"]
    assert gpu.flops_per_s["float32"] <= gpu.flops_per_s["bfloat16"] <= gpu.flops_per_s["float16"]
    # Types without units of their own stand at the rate of float32.
    has_bfloat16 = gpu.capability >= (8, 0)
    assert (gpu.flops_per_s["bfloat16"] > gpu.flops_per_s["float32"]) is has_bfloat16
    assert 48 * 2**10 < gpu.limits.optin_bytes <= gpu.limits.shared_bytes < gpu.l2_bytes < gpu.total_bytes
    assert gpu.limits.threads % 256 == 0
    # Newer generations have faster links, all slower than the memory.
    assert (gpu.link_bytes_per_s > 50e9) is (gpu.capability >= (9, 0))
    assert (gpu.link_bytes_per_s > 20e9) is (gpu.capability >= (8, 0))
    assert gpu.link_bytes_per_s < gpu.bytes_per_s / 10
    assert gpu.source


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("h100", "h100"),
        ("H100", "h100"),
        ("A100 40", "a100-40"),
        ("4090", "rtx4090"),
        ("RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx2080ti"),
        ("Tesla T4", "t4"),
        ("GB200", "gb200"),
        ("RTX 5090", "rtx5090"),
        ("NVIDIA RTX PRO 6000", "rtxpro6000"),
    ],
)
def test_names_are_found_as_people_write_them(asked: str, name: str) -> None:
    assert gpu_named(asked).name == name


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_a_gpu_is_found_by_its_drivers_name(gpu: Gpu) -> None:
    assert gpu_named(gpu.product) is gpu_named(gpu.product.removeprefix("NVIDIA ")) is gpu


def test_an_unknown_gpu_has_the_rates_of_its_generation_by_its_size() -> None:
    half = gpu_like("NVIDIA H100 PCIe", (9, 0), GPUS["h100"].sms // 2)
    assert half.flops_per_s["bfloat16"] == GPUS["h100"].flops_per_s["bfloat16"] / 2
    smaller = gpu_like("NVIDIA GeForce RTX 5080", (12, 0), 85)
    assert smaller.flops_per_s["tf32"] == GPUS["rtx5090"].flops_per_s["tf32"] / 2
    assert gpu_like("NVIDIA Thor", (11, 0), 20).capability == (10, 0)
    assert gpu_like("Tesla P100-PCIE-16GB", (6, 0), 56).capability == (7, 0)
    assert gpu_like("NVIDIA L40S", (8, 9), 1) is GPUS["l40s"]


def test_short_names_are_unique() -> None:
    assert {gpu_named(name).name for name in GPUS} == set(GPUS)
    assert len({gpu.product for gpu in GPUS.values()}) == len(GPUS)


@pytest.mark.parametrize("name", ["", "h1000", "mi300", "rtx"])
def test_an_unknown_name_says_what_is_known(name: str) -> None:
    with pytest.raises(UnknownName, match=r"unknown device.*b200.*rtx4090"):
        gpu_named(name)


def test_the_documentation_names_them_all() -> None:
    text = (Path(__file__).parents[2] / "docs" / "fit.md").read_text()
    (listed,) = re.findall(r"Known are ([^`]*), and `cpu`", text)
    assert sorted(gpu_named(name).name for name in listed.split(", ")) == sorted(GPUS)
