"""What user ids mean: which may be a person's, and which the user namespace of this process hides.

In a user namespace (Apptainer, bubblewrap, a rootless container) the kernel shows every account that has no number
there as the overflow number, root as well. The client and the server both import this, so it uses cheap modules only.
"""

from __future__ import annotations

OVERFLOW = "/proc/sys/kernel/overflowuid"
UID_MAP = "/proc/self/uid_map"
FIRST_PERSON = 1000  # below are root and the accounts of the system, by custom
ALL_UIDS = 0xFFFFFFFF  # the last number is nobody's: it means "none"


def is_unmapped(uid: int) -> bool:
    """Return whether this number stands for any account that has none in the user namespace of this process."""
    if str(uid) != _text(OVERFLOW).strip():
        return False
    try:
        known = sum(int(line.split()[2]) for line in _text(UID_MAP).splitlines())
    except (IndexError, ValueError):
        return False
    return 0 < known < ALL_UIDS


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(4096)
    except OSError:
        return ""
