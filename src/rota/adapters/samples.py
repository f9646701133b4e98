"""Metric rows of runs, one append-only file of JSON lines a run: apart from the store, so that they never delay it.

A row is kept as it came, less what cannot be a sample: numbers must be finite (NaN and infinities are left out of it)
and texts short. A line torn by a crash is skipped, and the next append begins a new one. Series are read once and then
only what was added: a file is known by how far it was read.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from rota.adapters.files import open_regular
from rota.adapters.tree_size import BLOCK
from rota.app.ports import FileBusy

MAX_ROWS = 10_000  # of one call
MAX_FILE_BYTES = 64 << 20
CHUNK = 8 << 20  # read at a time; a line that is as long, as some of older versions were, is left out
MAX_TEXT = 1000
MAX_KEY = 200
MAX_KEYS = 1000  # of a row, and of a run's series
MAX_CACHED = 32  # runs whose series are kept at hand
MAX_CACHED_VALUES = 2_000_000  # of all of them together but one that is larger alone, 16 bytes each
STEPS = ("step", "_step", "global_step", "epoch")  # the first of these that a row has says where it stands
RUN_ID = re.compile(r"[0-9a-f]{12}")


class _Read:
    """What is known of one run's file. Whoever reads on in it holds its lock, and nobody else's."""

    __slots__ = ("lock", "offset", "readers", "rows", "series", "values")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.readers = 0  # with those that wait for the lock; guarded by the lock of all
        self.begin_anew()

    def begin_anew(self) -> None:
        self.offset = self.rows = self.values = 0
        self.series: dict[str, tuple[array[float], array[float]]] = {}  # steps and values

    def take(self, chunk: bytes) -> bool:
        """False = there is no whole line in it yet."""
        whole = chunk if len(chunk) == CHUNK and b"\n" not in chunk else chunk[: chunk.rfind(b"\n") + 1]
        self.offset += len(whole)
        for line in whole.splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue  # torn by a crash
            if isinstance(row, dict):
                self._add(row)
        return bool(whole)

    def _add(self, row: dict[str, Any]) -> None:
        step = next((float(row[key]) for key in STEPS if _is_number(row.get(key))), float(self.rows))
        self.rows += 1
        for key, value in row.items():
            if _is_number(value) and (key in self.series or len(self.series) < MAX_KEYS):
                steps, values = self.series.setdefault(key, (array("d"), array("d")))
                steps.append(step)
                values.append(value)
                self.values += 1


class FileSamples:
    def __init__(self, root: Path) -> None:
        self._root = root
        if not os.path.lexists(self._root):  # else it would wait for the lock of the directory above
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.Lock()  # guards _read, and is held for a moment only
        self._read: OrderedDict[str, _Read] = OrderedDict()

    def append(self, run_id: str, rows: Sequence[Mapping[str, Any]]) -> int:
        lines = [_line(row) for row in islice(rows, MAX_ROWS)]
        fd = _open(str(self._path(run_id)), os.O_CREAT | os.O_RDWR | os.O_APPEND)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # whole calls, one after another
            size = os.fstat(fd).st_size
            torn = size and os.pread(fd, 1, size - 1) != b"\n"
            kept = _that_fit(lines, MAX_FILE_BYTES - size - 1)
            content = memoryview(b"\n" * torn + b"".join(kept))
            while kept and content:
                content = content[os.write(fd, content) :]
        finally:
            os.close(fd)
        return len(kept)

    def size(self, run_id: str) -> int:
        """Return the bytes of the blocks that a run's metrics use."""
        try:
            return os.stat(self._path(run_id), follow_symlinks=False).st_blocks * BLOCK
        except FileNotFoundError:
            return 0

    def sizes(self) -> Iterator[tuple[str, int]]:
        """Return the size of each run's metrics."""
        with os.scandir(self._root) as entries:
            for entry in entries:
                run_id = entry.name.removesuffix(".jsonl")
                if RUN_ID.fullmatch(run_id):
                    yield run_id, self.size(run_id)

    def series(self, run_id: str, points: int = 400, keys: int = 200) -> Mapping[str, Sequence[tuple[float, float]]]:
        path = self._path(run_id)
        try:
            file = open(path, "rb", opener=_open)  # noqa: SIM115 - closed below, however it goes
        except FileNotFoundError:
            return {}
        with file, self._known(run_id) as known:
            size = os.fstat(file.fileno()).st_size
            if size < known.offset:  # another file by the same name
                known.begin_anew()
            while size > known.offset:
                file.seek(known.offset)
                if not known.take(file.read(CHUNK)):
                    break
            return {key: _thin(*known.series[key], points) for key in islice(known.series, keys)}

    def purge(self, before: float, gone: Callable[[str], bool]) -> int:
        """Asks only about files that nobody added to since: of the others the run is there."""
        count = 0
        with os.scandir(self._root) as entries:
            for entry in entries:
                run_id = entry.name.removesuffix(".jsonl")
                if RUN_ID.fullmatch(run_id) and entry.stat(follow_symlinks=False).st_mtime < before and gone(run_id):
                    os.unlink(entry.path)
                    with self._lock:
                        self._read.pop(run_id, None)
                    count += 1
        return count

    @contextmanager
    def _known(self, run_id: str) -> Iterator[_Read]:
        """What is known of this run, for one reader at a time; afterwards it is the newest of what is kept."""
        with self._lock:
            known = self._read.setdefault(run_id, _Read())
            known.readers += 1
        try:
            with known.lock:
                yield known
        finally:
            with self._lock:
                known.readers -= 1
                if self._read.get(run_id) is known:
                    self._read.move_to_end(run_id)
                self._forget(known)

    def _forget(self, newest: _Read) -> None:
        """Drop the oldest; never what is being read, which the next reader would begin to read once more."""
        for run_id, known in list(self._read.items()):
            if not self._is_too_much():
                return
            if known is not newest and not known.readers:
                del self._read[run_id]

    def _is_too_much(self) -> bool:
        values = [each.values for each in self._read.values()]
        # one series may be larger than all that is kept, and would go with every read of another
        large = max(values, default=0)
        counted = sum(values) - (large if large > MAX_CACHED_VALUES else 0)
        return len(values) > MAX_CACHED or counted > MAX_CACHED_VALUES

    def _path(self, run_id: str) -> Path:
        if not RUN_ID.fullmatch(run_id):
            raise ValueError(f"not a run id: {run_id[:50]!r}")
        return self._root / f"{run_id}.jsonl"


def _clean(row: Mapping[str, Any]) -> dict[str, float | int | str]:
    kept: dict[str, float | int | str] = {}
    for key, value in islice(row.items(), MAX_KEYS):
        if len(key) <= MAX_KEY and (_is_number(value) or _is_short(value)):
            kept[key] = value
    return kept


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int that no float can hold
        return False


def _is_short(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT


def _line(row: Mapping[str, Any]) -> bytes:
    """A row of MAX_KEYS texts is shorter than CHUNK in UTF-8, and longer where each character is escaped."""
    return json.dumps(_clean(row), ensure_ascii=False).encode(errors="surrogatepass") + b"\n"


def _that_fit(lines: Sequence[bytes], room: int) -> Sequence[bytes]:
    """As many of the first lines as there is room for."""
    for count, line in enumerate(lines):
        room -= len(line)
        if room < 0:
            return lines[:count]
    return lines


def _thin(steps: array[float], values: array[float], points: int) -> Sequence[tuple[float, float]]:
    """Evenly, with the first and the last."""
    last = len(steps) - 1
    if last < points:
        return tuple(zip(steps, values, strict=True))
    if points < 2:
        return ((steps[last], values[last]),) * points
    chosen = (round(n * last / (points - 1)) for n in range(points))
    return tuple((steps[n], values[n]) for n in chosen)


def _open(path: str, flags: int) -> int:
    try:
        return open_regular(path, flags)
    except BlockingIOError:
        raise FileBusy("the metrics are held by a file lease of another process; ask again") from None
