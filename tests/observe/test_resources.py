from __future__ import annotations

import mmap
import os
from pathlib import Path

import psutil
import pytest

from burnish.core.errors import ResourceError
from burnish.observe.resources import (
    Gpu,
    cgroup_memory,
    find_gpus,
    machine_facts,
    peak_rss_bytes,
    require_memory,
    reset_peak_rss,
    usable_cores,
)


def tree(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_facts_of_this_machine_are_plausible(tmp_path: Path) -> None:
    facts = machine_facts(tmp_path / "not yet there")
    assert 0 < facts.cores <= (os.cpu_count() or 1)
    assert 0 < facts.memory_available_bytes <= facts.memory_total_bytes <= psutil.virtual_memory().total
    assert facts.disk_free_bytes > 0
    assert facts.cpu_model


def test_peak_memory_sees_an_allocation_that_is_gone_and_forgets_it_on_reset() -> None:
    resettable = reset_peak_rss()
    before = peak_rss_bytes()
    with mmap.mmap(-1, 64 * 2**20) as block:  # not from the allocator, which may keep what is freed
        for at in range(0, len(block), mmap.PAGESIZE):
            block[at] = 1
    assert peak_rss_bytes() - before > 50 * 2**20
    if resettable:
        reset_peak_rss()
        assert peak_rss_bytes() - before < 50 * 2**20


def test_the_tightest_limit_of_version_2_counts_without_file_cache(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/app/worker\n",
            "cg/memory.max": "max\n",
            "cg/app/memory.max": "4000\n",
            "cg/app/memory.current": "900\n",
            "cg/app/memory.stat": "anon 500\ninactive_file 300\n",
            "cg/app/worker/memory.max": "9000\n",
            "cg/app/worker/memory.current": "10\n",
            "cg/app/cpu.max": "150000 100000\n",
            "cg/app/worker/cpu.max": "max 100000\n",
        },
    )
    assert cgroup_memory(tmp_path / "cg", tmp_path / "proc") == (4000, 600)
    assert usable_cores(tmp_path / "cg", tmp_path / "proc") == min(1.5, len(os.sched_getaffinity(0)))


def test_version_1_in_a_container_falls_back_to_the_mount(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n",
            "cg/memory/memory.limit_in_bytes": "5000\n",
            "cg/memory/memory.usage_in_bytes": "4000\n",
            "cg/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 1500\n",
            "cg/cpu/cpu.cfs_quota_us": "50000\n",
            "cg/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert cgroup_memory(tmp_path / "cg", tmp_path / "proc") == (5000, 2500)
    assert usable_cores(tmp_path / "cg", tmp_path / "proc") == 0.5


def test_no_limit_is_none(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n",
            "cg/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "cg/cpu/cpu.cfs_quota_us": "-1\n",
        },
    )
    assert cgroup_memory(tmp_path / "cg", tmp_path / "proc") == (None, 0)
    assert cgroup_memory(tmp_path / "cg", tmp_path / "nowhere") == (None, 0)
    assert usable_cores(tmp_path / "cg", tmp_path / "proc") == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo 'NVIDIA H200, 143771, 570.86.15'", (Gpu("NVIDIA H200", 143771 * 2**20, "570.86.15"),)),
        ("echo 'No devices were found' ; exit 6", ()),
        ("echo 'something else entirely'", ()),
    ],
)
def test_gpus_as_the_driver_lists_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: tuple[Gpu, ...]
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert find_gpus() == expected


def test_no_driver_means_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_gpus() == ()


def test_too_little_memory_names_need_and_supply() -> None:
    require_memory(1, purpose="a byte")
    with pytest.raises(ResourceError, match=r"stage 'rl' needs 1024\.0 TiB of memory") as caught:
        require_memory(2**50, purpose="stage 'rl'", where="recipes/x.yaml, stages[1]")
    assert caught.value.where == "recipes/x.yaml, stages[1]"
