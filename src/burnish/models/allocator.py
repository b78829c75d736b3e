"""Freed memory kept by the process, so that the next step's tensors need no new pages.

A training step frees everything that it allocated. The C library gives large pieces back to the system at
once, and the next step pays for each page again: measured on two cores, a third of a step's time. So large
pieces come from the heap, and the heap's top is not given back. The process then stays at its peak.

Leaves out other C libraries, where nothing changes.
"""

from __future__ import annotations

import ctypes
import platform

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # <malloc.h>
_NEVER = -1
_LARGEST = 2**31 - 1
_TOP_PAD_BYTES = 64 * 2**20


def keep_freed_memory() -> bool:
    """Set the process's allocator (glibc only); True where it took effect."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = ((_M_MMAP_THRESHOLD, _LARGEST), (_M_TRIM_THRESHOLD, _NEVER), (_M_TOP_PAD, _TOP_PAD_BYTES))
    return all(mallopt(name, value) == 1 for name, value in settings)
