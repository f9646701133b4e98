"""Large pieces of memory go back to the system when they are freed."""

from __future__ import annotations

import ctypes
import logging
import subprocess
import sys

import pytest

from rota.api import malloc

# Freeing a piece of 1 MiB makes glibc take all smaller ones from its heap, unless the thresholds are fixed.
COUNT = """
import ctypes
from rota.api import malloc

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd a b c d e".split()]

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Info
malloc.fix_thresholds()
large = bytearray(1 << 20)
del large
before = mallinfo().hblks
pieces = [bytearray(256 << 10) for _ in range(20)]
taken = mallinfo().hblks
del pieces
print(taken - before, mallinfo().hblks - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="only glibc from 2.33 on can tell")
def test_each_large_piece_is_taken_from_the_system_by_itself_and_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, timeout=60, check=True)
    taken, left = map(int, done.stdout.split())
    assert taken >= 20
    assert left == taken - 20


def test_a_library_without_mallopt_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    with caplog.at_level(logging.DEBUG, malloc.__name__):
        malloc.fix_thresholds()
    assert "no mallopt" in caplog.text
