"""Freed memory kept by the process, so that the next step's tensors need no new pages.

A training step frees everything that it allocated. The C library gives large pieces back to the system at
once, and the next step pays for each page again: measured on two cores, a third of a step's time. So large
pieces come from the heap, and the heap's top is not given back. What shapes that differ leave unused between
them would add up from step to step, so that once a step the rest goes back to the system: a fraction of a second.

Leaves out other C libraries, where nothing changes.
"""

from __future__ import annotations

import ctypes
import platform

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # <malloc.h>
_NEVER = -1
_LARGEST = 2**31 - 1
_TOP_PAD_BYTES = 64 * 2**20
SPARE_BYTES = 2 * 2**30
"""Freed memory that a process may keep between steps."""


def keep_freed_memory() -> bool:
    """Set the process's allocator (glibc only); True where it took effect."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = ((_M_MMAP_THRESHOLD, _LARGEST), (_M_TRIM_THRESHOLD, _NEVER), (_M_TOP_PAD, _TOP_PAD_BYTES))
    return all(mallopt(name, value) == 1 for name, value in settings)


class _Mallinfo2(ctypes.Structure):
    """`struct mallinfo2` of <malloc.h>; `fordblks` are the bytes of the heap that are free."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def freed_bytes() -> int:
    """Freed memory that the C library's heap keeps, given back to the system or not; 0 where it does not say."""
    if platform.libc_ver()[0] != "glibc" or not hasattr(ctypes.CDLL(None), "mallinfo2"):
        return 0
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo2
    return int(mallinfo2().fordblks)


def return_freed_memory(spare_bytes: int = SPARE_BYTES) -> bool:
    """Give freed pages back to the system where more than `spare_bytes` are free; True where it was done."""
    if freed_bytes() <= spare_bytes:
        return False
    return bool(ctypes.CDLL(None).malloc_trim(0))
