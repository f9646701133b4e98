"""Tables as squeue and sinfo print them: a format of %-fields, a heading, a line for each row."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from rota.cli.render import plain
from rota.cli.slurm.options import UsageError

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Field(Generic[R]):
    head: str
    value: Callable[[R], str]


class Table(Generic[R]):
    """`%.18i` is right-justified in 18 columns and cut there, `%18i` left-justified, `%i` as wide as it is."""

    def __init__(self, text: str, fields: Mapping[str, Field[R]]) -> None:
        self._parts: list[tuple[str, bool, int, Field[R] | None]] = []
        place = 0
        for match in re.finditer(r"%(\.?)([0-9]{0,3})(.)", text):
            self._parts.append((text[place : match.start()], False, 0, None))
            field = fields.get(match[3])
            if field is None:
                known = " ".join(f"%{letter}" for letter in fields)
                raise UsageError(f"--format: %{match[3]} is not known here; there are {known}")
            self._parts.append(("", bool(match[1]), int(match[2] or 0), field))
            place = match.end()
        self._parts.append((text[place:], False, 0, None))

    def heading(self) -> str:
        return self._line(lambda field: field.head)

    def row(self, item: R) -> str:
        return self._line(lambda field: plain(field.value(item)))

    def _line(self, cell: Callable[[Field[R]], str]) -> str:
        texts = []
        for literal, right, width, field in self._parts:
            text = literal if field is None else cell(field)
            if width:
                text = f"{text[:width]:{'>' if right else '<'}{width}}"
            texts.append(text)
        return "".join(texts)
