"""How much memory a process may use: the least of what its function, its containers and the machine allow."""

from __future__ import annotations

from pathlib import Path

from tests.core.entry_points.payloads import memory_limit_mb

MIB = 1024 * 1024


def write(root: Path, name: str, text: str) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_the_functions_configuration_is_a_limit(tmp_path: Path) -> None:
    assert memory_limit_mb({"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512"}, tmp_path) == 512
    machine = memory_limit_mb({}, tmp_path)
    assert machine > 512
    for nothing in ("much", "0", "-5", ""):
        assert memory_limit_mb({"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": nothing}, tmp_path) == machine


def test_cgroup_version_2_is_a_limit(tmp_path: Path) -> None:
    machine = memory_limit_mb({}, tmp_path)
    write(tmp_path, "sys/fs/cgroup/memory.max", "max\n")
    assert memory_limit_mb({}, tmp_path) == machine
    write(tmp_path, "sys/fs/cgroup/memory.max", f"{700 * MIB}\n")
    assert memory_limit_mb({}, tmp_path) == 700


def test_the_least_of_all_cgroups_above_counts(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/pod/container\n")
    write(tmp_path, "sys/fs/cgroup/pod/memory.max", str(600 * MIB))
    write(tmp_path, "sys/fs/cgroup/pod/container/memory.max", str(900 * MIB))
    assert memory_limit_mb({}, tmp_path) == 600
    assert memory_limit_mb({"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "300"}, tmp_path) == 300


def test_cgroup_version_1_is_a_limit(tmp_path: Path) -> None:
    machine = memory_limit_mb({}, tmp_path)
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", str((1 << 63) - 4096))
    assert memory_limit_mb({}, tmp_path) == machine
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", str(400 * MIB))
    assert memory_limit_mb({}, tmp_path) == 400
