"""Facts about this machine: cores, memory, disk, CPU features, GPUs. For `doctor` and for estimates.

Every figure is what *this process* may use: control groups and CPU affinity count. Leaves out measuring
speed.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from burnish.core.errors import ResourceError
from burnish.observe.disk import format_bytes, free_bytes

# Features that decide which kernels are fast, by their names in /proc/cpuinfo.
_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8")
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
# cgroup v1 writes "no limit" as the largest multiple of the page size below 2**63.
_NO_LIMIT_BYTES = 2**60
_NVIDIA_SMI_S = 20.0  # a sleeping driver takes seconds to answer its first query


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU as the driver names it."""

    name: str
    memory_bytes: int
    driver: str


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What this process may use.

    `cores` can be a fraction under a CPU quota. `cgroup_limit_bytes` is None where nothing limits memory but
    the machine.
    """

    platform: str
    python: str
    cpu_model: str
    cpu_flags: tuple[str, ...]
    cores: float
    memory_total_bytes: int
    memory_available_bytes: int
    cgroup_limit_bytes: int | None
    disk_free_bytes: int
    gpus: tuple[Gpu, ...]


def machine_facts(folder: Path) -> MachineFacts:
    """The facts now; disk is that of `folder`, which need not exist yet."""
    limit, used = cgroup_memory()
    memory = psutil.virtual_memory()
    available = memory.available if limit is None else min(memory.available, max(0, limit - used))
    model, flags = _cpu()
    return MachineFacts(
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        cpu_model=model,
        cpu_flags=flags,
        cores=usable_cores(),
        memory_total_bytes=memory.total if limit is None else min(memory.total, limit),
        memory_available_bytes=available,
        cgroup_limit_bytes=limit,
        disk_free_bytes=free_bytes(folder),
        gpus=find_gpus(),
    )


def require_memory(num_bytes: int, *, purpose: str, where: str = "") -> None:
    """Checks that this process may take so much more memory.

    Raises: ResourceError naming what is needed, what is available, and for what.
    """
    limit, used = cgroup_memory()
    available = psutil.virtual_memory().available
    if limit is not None:
        available = min(available, max(0, limit - used))
    if available < num_bytes:
        raise ResourceError(
            f"{purpose} needs {format_bytes(num_bytes)} of memory; {format_bytes(available)} are available",
            where=where or "memory of this machine",
            fix="close other programs, choose a smaller model or micro-batch, or use a larger machine",
        )


def usable_cores(cgroup_root: Path = _CGROUP_ROOT, proc: Path = _PROC) -> float:
    """Cores that this process may keep busy: affinity, and the CPU quota of its control groups."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    for folder in _own_cgroups("cpu", cgroup_root, proc):
        v1 = [_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")]
        quota, period = _read(folder / "cpu.max").split() or v1
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            cores = min(cores, int(quota) / int(period))
    return cores


def cgroup_memory(cgroup_root: Path = _CGROUP_ROOT, proc: Path = _PROC) -> tuple[int | None, int]:
    """The tightest memory limit of this process's control groups, and what counts against it now, in bytes.

    File cache that the kernel can drop is not counted. (None, 0) where there is no limit.
    """
    tightest: int | None = None
    used = 0
    for folder in _own_cgroups("memory", cgroup_root, proc):
        limit = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
        if not limit.isdigit() or int(limit) >= _NO_LIMIT_BYTES:
            continue
        if tightest is not None and int(limit) >= tightest:
            continue
        tightest = int(limit)
        usage = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes")
        stat = dict(line.split() for line in _read(folder / "memory.stat").splitlines())
        cache = stat.get("total_inactive_file", stat.get("inactive_file", "0"))
        used = max(0, int(usage or 0) - int(cache))
    return tightest, used


def peak_rss_bytes() -> int:
    """The most resident memory this process has held since it began, or since `reset_peak_rss`."""
    for line in _read(_PROC / "self/status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, others KiB


def reset_peak_rss() -> bool:
    """Starts `peak_rss_bytes` anew from the present; False where the system cannot, and nothing changed."""
    try:
        (_PROC / "self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def find_gpus() -> tuple[Gpu, ...]:
    """NVIDIA GPUs as `nvidia-smi` lists them; none where there is no driver or it does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    command = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_NVIDIA_SMI_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    gpus = []
    for line in answer.stdout.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 3 and fields[1].isdigit():
            gpus.append(Gpu(fields[0], int(fields[1]) * 2**20, fields[2]))
    return tuple(gpus)


def _cpu() -> tuple[str, tuple[str, ...]]:
    model, flags = platform.processor() or platform.machine(), set[str]()
    for line in _read(_PROC / "cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            model = value.strip()
        elif key.strip() in ("flags", "Features"):
            flags = set(value.split())
            break
    return model, tuple(flag for flag in _FLAGS if flag in flags)


def _own_cgroups(controller: str, root: Path, proc: Path) -> list[Path]:
    """Folders of this process's control group and its ancestors, v1 and v2, innermost first.

    In a container the path that /proc names may not exist below the mount; the mount's root is then the
    container's own group.
    """
    folders: list[Path] = []
    for line in _read(proc / "self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        mounts = [root / controller] if controllers else [root, root / "unified"]
        for mount in mounts:
            inner = mount / path.lstrip("/")
            chain = [inner, *inner.parents]
            folders += [step for step in chain if step == mount or mount in step.parents]
    return [folder for folder in folders if folder.is_dir()]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""  # this kernel does not have the file
