"""Where the program `rota` begins: before anything large is imported."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    gc.set_threshold(50_000)  # imports make many objects and no garbage: looking for it is a tenth of a short command
    try:
        from rota.cli.main import main as command
    except KeyboardInterrupt:  # Ctrl-C before there was anything to interrupt
        sys.exit(130)
    try:
        command()
    finally:
        gc.freeze()  # nor need what goes anyway be looked through once more on the way out
