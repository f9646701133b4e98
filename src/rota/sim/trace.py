"""read_trace: jobs from a CSV file. Whatever is odd is refused by line and field, all of it at once, before anything is
simulated."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rota.core.board import Layout
from rota.core.node import Node
from rota.core.place import could_ever_fit
from rota.core.resources import Request
from rota.sim.human import many
from rota.sim.model import Job, in_order

REQUIRED = ("job_id", "submit_time_s", "duration_s", "gpus")
OPTIONAL = ("user", "limit_s", "priority", "preemptible")
MAX_JOBS = 1_000_000
MAX_TEXT = 256
MAX_S = 10**10  # some three hundred years
MAX_GPUS = 1_000_000
MOST_TOLD = 10  # bad lines

_WHOLE = re.compile(r"[0-9]{1,15}", re.ASCII)

Row = dict[str, str]


class BadTrace(ValueError):
    """The message names the file, the line, the field, what is wrong and what would be right."""


class _BadLines:
    """What is wrong with a trace, a line each: whoever mends it should have to look only once."""

    def __init__(self, path: str) -> None:
        self._path, self._told, self._count = path, list[str](), 0

    def add(self, problem: str) -> None:
        self._count += 1
        if len(self._told) < MOST_TOLD:
            self._told.append(problem)

    def refuse(self) -> None:
        """If there is anything to refuse."""
        before = f"{self._path}: " if self._path else ""
        if self._count == 1:
            raise BadTrace(f"{before}{self._told[0]}")
        if self._count:
            more = self._count - len(self._told)
            lines = [*self._told, *([f"and {more:,} more"] if more else [])]
            raise BadTrace("\n  ".join([f"{before}{self._count:,} lines are wrong", *lines]))


def read_trace(path: str | Path, *, preemptible: bool | None = None) -> list[Job]:
    """In the order of their submits. `preemptible` speaks for jobs of which the trace does not say it; None = all may
    be stopped."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return in_order(_jobs(str(path), csv.reader(file, strict=True), preemptible is not False))
    except OSError as error:
        raise BadTrace(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BadTrace(f"{path}: is not UTF-8 text; a trace is a CSV file with a header") from None


def columns(path: str | Path) -> tuple[list[str], list[str]]:
    """Of a trace that was read: the columns that are used, and those that are not."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        header = [name.strip() for name in next((row for row in csv.reader(file) if row), [])]
    known = REQUIRED + OPTIONAL
    return [name for name in header if name in known], [name for name in header if name not in known]


def check_fits(jobs: Iterable[Job], nodes: Sequence[Node], source: str = "") -> None:
    """Refuse jobs that the cluster could not place even if it were empty; `source` is the trace's name."""
    layout, most = Layout(nodes), sum(len(node.gpus) for node in nodes)
    cluster = f"{many(len(nodes), 'node')} with {many(most, 'GPU')}"
    bad = _BadLines(source)
    for job in jobs:
        if not could_ever_fit(layout, Request(gpus=job.gpus)):
            where = f"line {job.line}: " if job.line else ""
            bad.add(
                f"{where}gpus: job {job.id} asks for {job.gpus}, and this cluster of {cluster} could never place it; "
                "use more nodes or leave it out"
            )
    bad.refuse()


def _jobs(path: str, rows: Iterator[list[str]], preemptible: bool) -> Iterator[Job]:
    bad = _BadLines(path)
    numbered = _numbered(rows, bad)
    _, header = next(numbered, (0, []))
    bad.refuse()
    columns = _columns(path, header)
    seen: dict[str, int] = {}
    for line, row in numbered:
        if len(row) != len(header):
            bad.add(f"line {line}: has {many(len(row), 'field')}, the header names {len(header)}")
            continue
        try:
            job = _Line(line, {name: row[at].strip() for name, at in columns.items()}).job(preemptible)
        except BadTrace as error:
            bad.add(str(error))
            continue
        if job.id in seen:
            bad.add(f"line {line}: job_id: {job.id!r} is also in line {seen[job.id]}; ids must differ")
            continue
        if len(seen) >= MAX_JOBS:
            raise BadTrace(f"{path}: line {line}: more than {MAX_JOBS} jobs; split the trace")
        seen[job.id] = line
        yield job
    bad.refuse()
    if not seen:
        raise BadTrace(f"{path}: has a header and no jobs")


def _numbered(rows: Iterator[list[str]], bad: _BadLines) -> Iterator[tuple[int, list[str]]]:
    """Lines that are not blank, with their numbers, up to the first that is no CSV: what comes after it may be part of
    it."""
    line = 0
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            bad.add(f"line {line + 1}: is not CSV: {error}")
            return
        line = rows.line_num  # type: ignore[attr-defined]  # a csv.reader; its type has no public name
        if row:
            yield line, row


def _columns(path: str, header: list[str]) -> dict[str, int]:
    if not header:
        raise BadTrace(f"{path}: is empty; the first line names the columns: {','.join(REQUIRED)}")
    names = [name.strip() for name in header]
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise BadTrace(
            f"{path}: line 1: {', '.join(missing)}: no such column; needed are {','.join(REQUIRED)}, "
            f"and {', '.join(OPTIONAL)} are used where they are there"
        )
    known = [name for name in names if name in REQUIRED + OPTIONAL]
    twice = next((name for name in known if known.count(name) > 1), None)
    if twice:
        raise BadTrace(f"{path}: line 1: {twice}: the column is there twice")
    return {name: names.index(name) for name in known}


class _Line:
    def __init__(self, line: int, row: Row) -> None:
        self.line, self.row = line, row

    def job(self, preemptible: bool) -> Job:
        return Job(
            id=self.text("job_id", needed=True),
            submit_s=self.number("submit_time_s", 0, MAX_S),
            duration_s=self.number("duration_s", 0, MAX_S),
            gpus=self.number("gpus", 0, MAX_GPUS),
            user=self.text("user"),
            limit_s=self.number("limit_s", 1, MAX_S) if self.row.get("limit_s") else None,
            priority=self.number("priority", 1, 4) if self.row.get("priority") else 2,
            preemptible=self.number("preemptible", 0, 1) == 1 if self.row.get("preemptible") else preemptible,
            line=self.line,
        )

    def text(self, field: str, *, needed: bool = False) -> str:
        text = self.row.get(field, "")
        if needed and not text:
            raise self.bad(field, "is missing")
        if len(text) > MAX_TEXT or not text.isprintable():
            raise self.bad(field, f"{text[:40]!r} is no name; use up to {MAX_TEXT} printable characters")
        return text

    def number(self, field: str, least: int, most: int) -> int:
        text = self.row[field]
        if _WHOLE.fullmatch(text) and least <= int(text) <= most:
            return int(text)
        raise self.bad(
            field, f"{text[:40]!r} is wrong, use a whole number, {least} to {most}" if text else "is missing"
        )

    def bad(self, field: str, problem: str) -> BadTrace:
        return BadTrace(f"line {self.line}: {field}: {problem}")
