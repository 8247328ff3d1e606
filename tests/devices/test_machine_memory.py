"""What the machine has left for a process, within the limits of its control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from remat_compiler.devices.machine_memory import available_bytes, total_bytes

MIB = 2**20


def machine(root: Path, groups: str, files: dict[str, str], available_kib: int | None = 4096 * 1024) -> Path:
    """The folders of a system with that much memory left, and these files of control groups."""
    everything = {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}}
    if available_kib is not None:
        everything["proc/meminfo"] = f"MemTotal: 9999999 kB\nMemAvailable:   {available_kib} kB\n"
    for name, text in everything.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_without_groups_it_is_what_the_machine_has_left(tmp_path: Path) -> None:
    assert available_bytes(machine(tmp_path, "", {})) == 4096 * MIB


def test_a_group_leaves_its_limit_less_what_is_used_of_it(tmp_path: Path) -> None:
    """What caches of files have is given back where it is asked for."""
    files = {
        "job/memory.max": f"{1000 * MIB}\n",
        "job/memory.current": f"{600 * MIB}\n",
        "job/memory.stat": f"anon 5\ninactive_file {100 * MIB}\nsock 0\n",
        "memory.max": "max\n",
        "memory.current": f"{3000 * MIB}\n",
    }
    assert available_bytes(machine(tmp_path, "0::/job\n", files)) == 500 * MIB


def test_the_tightest_of_nested_groups_counts(tmp_path: Path) -> None:
    files = {
        "outer/memory.max": str(700 * MIB),
        "outer/memory.current": str(600 * MIB),
        "outer/inner/memory.max": str(900 * MIB),
        "outer/inner/memory.current": str(100 * MIB),
    }
    assert available_bytes(machine(tmp_path, "0::/outer/inner", files)) == 100 * MIB


def test_in_a_container_the_topmost_folder_is_the_own_group(tmp_path: Path) -> None:
    files = {"memory.max": str(800 * MIB), "memory.current": str(300 * MIB)}
    assert available_bytes(machine(tmp_path, "0::/pod/of/the/host", files)) == 500 * MIB


def test_groups_of_the_first_version_have_other_files(tmp_path: Path) -> None:
    files = {
        "memory/job/memory.limit_in_bytes": str(1000 * MIB),
        "memory/job/memory.usage_in_bytes": str(950 * MIB),
        "memory/job/memory.stat": f"total_inactive_file {50 * MIB}",
        # No limit is a number larger than any memory.
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/memory.usage_in_bytes": str(3000 * MIB),
    }
    groups = "9:cpuset:/job\n4:memory:/job\n1:cpu,cpuacct:/job\n0::/\n"
    assert available_bytes(machine(tmp_path, groups, files)) == 100 * MIB


def test_a_group_that_is_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    files = {"memory.max": str(100 * MIB), "memory.current": str(120 * MIB)}
    assert available_bytes(machine(tmp_path, "0::/", files)) == 0


@pytest.mark.parametrize("groups", ["", "0::/\n"])
def test_a_system_that_has_no_such_files_is_asked_otherwise(groups: str, tmp_path: Path) -> None:
    found, most = available_bytes(machine(tmp_path, groups, {}, available_kib=None)), total_bytes()
    assert found is None or most is None or 0 < found <= most


def test_this_machine_has_some_left() -> None:
    found, most = available_bytes(), total_bytes()
    assert found is None or most is None or 0 < found < most
