"""The files a simulation leaves: judged before it begins, written when it is over, and there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import click

KINDS = (".html", ".png", ".svg")


@dataclass(slots=True)
class Outputs:
    """What is to be written, by the file's name. Nothing is before `write`."""

    made: dict[Path, Callable[[Path], None]] = field(default_factory=dict)

    def add(self, path: Path, write: Callable[[Path], None]) -> None:
        """Two that would have the same name (policies `a b` and `a-b`) get different ones."""
        free, number = path, 2
        while free in self.made:
            free, number = path.with_name(f"{path.stem}-{number}{path.suffix}"), number + 1
        self.made[free] = write

    def text(self, path: Path, content: str) -> None:
        self.add(path, lambda where: _put(where, content.encode("utf-8", "replace")))

    def data(self, path: Path, content: bytes) -> None:
        self.add(path, lambda where: _put(where, content))

    def write(self) -> list[Path]:
        """All beside their places first; only when every one of them is complete do they take their names."""
        ready: list[tuple[Path, Path]] = []
        new = {path.parent for path in self.made if not path.parent.exists()}
        try:
            for path, write in self.made.items():
                path.parent.mkdir(exist_ok=True)
                handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
                os.close(handle)
                ready.append((Path(name), path))
                write(Path(name))
                os.chmod(name, 0o666 & ~_umask())  # mkstemp's are for nobody else to read
            for name_, path in ready:
                os.replace(name_, path)
        except BaseException:
            for name_, _ in ready:
                with contextlib.suppress(OSError):
                    name_.unlink()
            for directory in new:
                with contextlib.suppress(OSError):
                    directory.rmdir()
            raise
        return list(self.made)


def _put(where: Path, content: bytes) -> None:
    where.write_bytes(content)


def _umask() -> int:
    """There is no way to ask without setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def must_take_a_file(path: Path, option: str) -> None:
    if path.is_dir():
        raise click.BadParameter(f"{path} is a directory; name a file", param_hint=option)
    _must_be_writable(path, option)


def must_take_pictures(path: Path) -> None:
    """A page, a picture, or a directory for several; the directory may be new, the one it lies in may not."""
    option = "--plots"
    if path.is_dir():
        if not os.access(path, os.W_OK | os.X_OK):
            raise click.BadParameter(f"{path}: may not be written to", param_hint=option)
        return
    if path.exists() and path.suffix.lower() not in KINDS:
        raise click.BadParameter(f"{path} is a file; use one of {', '.join(KINDS)}, or a directory", param_hint=option)
    if path.suffix and path.suffix.lower() not in KINDS:
        raise click.BadParameter(
            f"{path}: pictures are {', '.join(KINDS)}, or a directory that gets several", param_hint=option
        )
    _must_be_writable(path, option)


def _must_be_writable(path: Path, option: str) -> None:
    where = path.parent
    if not where.is_dir():
        raise click.BadParameter(f"{path}: there is no directory {where}", param_hint=option)
    if not os.access(where, os.W_OK | os.X_OK):
        raise click.BadParameter(f"{path}: {where} may not be written to", param_hint=option)


def beside(path: Path, name: str) -> Path:
    """out.csv and easy: out.easy.csv."""
    from rota.sim.picture.album import slug

    return path.with_name(f"{path.stem}.{slug(name)}{path.suffix}")
