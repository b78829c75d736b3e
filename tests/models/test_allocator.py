"""Freed memory stays for the next step, and what piles up goes back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

CODE = """
import ctypes
from pathlib import Path
from burnish.models.allocator import freed_bytes, keep_freed_memory, return_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
MIB = 2**20

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // MIB

assert keep_freed_memory()
large, small = [], []
for _ in range(32):
    large.append(libc.malloc(8 * MIB))
    ctypes.memset(large[-1], 1, 8 * MIB)
    small.append(libc.malloc(4096))  # lies between two large pieces, and stays
full = resident()
for piece in large:
    libc.free(piece)
kept = resident()
assert freed_bytes() >= 256 * MIB
assert not return_freed_memory(spare_bytes=1024 * MIB)
assert resident() >= kept - 8
assert return_freed_memory(spare_bytes=0)
print(full, kept, resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are those of glibc")
def test_freed_memory_is_kept_until_it_is_too_much() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    full, kept, left = map(int, done.stdout.split())
    assert kept > full - 32
    assert left < kept - 200
