"""The exit codes that are Rota's own, as sysexits(3) numbers them. Every other code is that of the user's command."""

from __future__ import annotations

USAGE, UNREACHABLE, CANNOT_WRITE, REFUSED, NOT_AUTHORISED = 2, 69, 74, 75, 77
