"""The log cap: a log that outgrows it loses its middle, in place, so that the byte offsets readers hold stay true.

The first quarter of the cap is kept (how it began) and the newest half (how it goes on); what lies between is given
back to the file system as a hole. `dropped` records the hole *before* it is made: a reader who looks at the record
after reading the data knows which zeros were never printed. Where holes cannot be made the file is cut back to its
beginning instead, and offsets restart.
"""

from __future__ import annotations

import ctypes
import os

from rota.adapters.backends import records

PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
BLOCK = 4096  # holes are made of whole blocks

libc = ctypes.CDLL(None, use_errno=True)


class LogCap:
    def __init__(self, log: int, directory: str, cap_bytes: int) -> None:
        self._log = log
        self._directory = directory
        self._cap = max(cap_bytes, 4 * BLOCK)
        self._head = self._cap // 4 // BLOCK * BLOCK
        self._hole_end = self._head

    def check(self) -> float:
        """Trim when needed; returns how soon to look again, in seconds."""
        size = os.fstat(self._log).st_size
        kept = size - (self._hole_end - self._head)
        if kept > self._cap:
            self._trim(size)
            return 0.1
        return 1.0 if kept < self._cap // 2 else 0.1

    def _trim(self, size: int) -> None:
        end = (size - self._cap // 2) // BLOCK * BLOCK
        if end <= self._hole_end:
            return
        try:
            records.publish(self._directory, "dropped", records.dump({"start": self._head, "end": end}))
        except OSError:
            return  # a full disk: try again soon, and let the job live
        # The whole hole each time, not only what is new: cheap, and right even if an earlier call was cut short.
        args = (ctypes.c_int(PUNCH_HOLE_KEEP_SIZE), ctypes.c_longlong(self._head), ctypes.c_longlong(end - self._head))
        if libc.fallocate64(ctypes.c_int(self._log), *args) == 0:
            self._hole_end = end
            return
        os.unlink(f"{self._directory}/dropped")
        os.ftruncate(self._log, self._head)
        os.write(self._log, b"\n[... %d bytes dropped by the log cap ...]\n" % (size - self._head))
