"""How the C library gives freed memory back to the system.

What clients send comes in pieces of up to 256 KiB. By default glibc takes the first of them from the system one by one;
once one was freed it takes the next ones from its heap, where small objects settle in the gaps. Thousands of pieces
that were freed long ago then take gigabytes, although few of them are there at a time. With fixed thresholds each large
piece goes back to the system as soon as it is freed.
"""

from __future__ import annotations

import ctypes
import logging

log = logging.getLogger(__name__)

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
LARGE = 64 << 10  # bytes of a piece that is taken from the system by itself
FREE_AT_THE_END = 16 << 20  # bytes that the heap may keep there: to give back and to ask for each few would cost time


def fix_thresholds() -> None:
    """Do so for this process, where its C library can; only glibc needs it."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        log.debug("the C library has no mallopt: its thresholds stay as they are")
        return
    for option, value in ((M_MMAP_THRESHOLD, LARGE), (M_TRIM_THRESHOLD, FREE_AT_THE_END)):
        if not mallopt(ctypes.c_int(option), ctypes.c_int(value)):
            log.debug("mallopt(%d, %d) is refused", option, value)
