"""Arrows point down only: who in src/rota may import whom, kept true by reading every import.

The rules are the table RULES; docs/ARCHITECTURE.md draws the same picture. An import written anywhere in a file
counts, under `if TYPE_CHECKING` as well; only what a rule calls lazy has to stand inside a function, or there, where
nothing is imported when the program runs.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "rota"

# Parts of the standard library that bring a clock, chance, I/O or concurrency.
# fmt: off
IMPURE = frozenset({
    "asyncio", "concurrent", "ctypes", "datetime", "http", "importlib", "io", "logging", "multiprocessing", "os",
    "pathlib", "random", "secrets", "select", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess",
    "tempfile", "threading", "time", "urllib", "uuid",
})
# fmt: on


@dataclass(frozen=True)
class Rule:
    """What one zone, a direct child of src/rota, may import besides the standard library."""

    rota: tuple[str, ...] = ()  # these modules of Rota, and what lies under them
    lazy: tuple[str, ...] = ()  # these too, but only inside a function or for types
    libraries: tuple[str, ...] | None = ()  # third-party packages; None: any
    banned: frozenset[str] = frozenset()  # parts of the standard library it may not use


DOOR = ("rota.core", "rota.app", "rota.config", "rota.observe")
RULES = {
    "__init__": Rule(lazy=("rota.client",)),
    "config": Rule(rota=("rota.core.clusters", "rota.core.policynames")),
    "observe": Rule(),
    "sock_diag": Rule(),
    "user_ids": Rule(),
    "client": Rule(rota=("rota.client", "rota.sock_diag", "rota.user_ids")),
    "core": Rule(rota=("rota.core",), banned=IMPURE),
    "app": Rule(rota=("rota.core", "rota.app")),
    "adapters": Rule(
        rota=("rota.core", "rota.app.ports", "rota.adapters", "rota.sock_diag", "rota.user_ids"), libraries=None
    ),
    "api": Rule(rota=(*DOOR, "rota.api", "rota.user_ids"), libraries=None),
    "agent": Rule(rota=(*DOOR, "rota.agent"), libraries=None),
    "cli": Rule(rota=(*DOOR, "rota.cli", "rota.client"), lazy=("rota.main", "rota.sim"), libraries=None),
    "sim": Rule(rota=("rota.core", "rota.sim")),
    "main": Rule(rota=("rota",), libraries=None),
    "__main__": Rule(rota=("rota.cli",)),
}
DYNAMIC = ("import_module", "__import__")
# `from rota import __version__` is no arrow for those whose job it is to show it.
SHOW_VERSION = ("adapters", "api", "agent", "cli", "client")


@dataclass(frozen=True)
class Import:
    line: int
    target: str
    lazy: bool


def violations(source: Path) -> list[str]:
    """Each wrong arrow under `source`, the directory of the package rota, as 'file:line imports X: why'."""
    found = []
    for path in sorted(source.rglob("*.py")):
        zone = path.relative_to(source).parts[0].removesuffix(".py")
        shown = path.relative_to(source.parents[1])
        if zone not in RULES:
            found.append(f"{shown}:1 belongs to no zone: give {zone} a rule in tests/unit/test_arrows.py")
            continue
        for arrow in imports(path, source):
            why = objection(zone, arrow)
            if why:
                found.append(f"{shown}:{arrow.line} imports {arrow.target}: {why}")
    return found


def objection(zone: str, arrow: Import) -> str:
    """Why `zone` may not import this; empty when it may."""
    rule, top = RULES[zone], arrow.target.partition(".")[0]
    if top == "rota":
        if within(arrow.target, rule.rota) or (arrow.target == "rota.__version__" and zone in SHOW_VERSION):
            return ""
        if within(arrow.target, rule.lazy):
            return "" if arrow.lazy else f"{zone} may do so only inside a function"
        return f"{zone} may import of Rota only {', '.join(rule.rota + rule.lazy) or 'nothing'}"
    if top in sys.stdlib_module_names:
        return f"{zone} has no clock, chance, I/O or concurrency" if top in rule.banned else ""
    if rule.libraries is None or top in rule.libraries:
        return ""
    return f"{zone} may use the standard library{''.join(f' and {name}' for name in rule.libraries)} only"


def within(target: str, allowed: tuple[str, ...]) -> bool:
    return any(target == name or target.startswith(name + ".") for name in allowed)


def imports(path: Path, source: Path) -> Iterator[Import]:
    package = ["rota", *path.parent.relative_to(source).parts]
    return walk(ast.parse(path.read_text(encoding="utf-8"), str(path)), package, lazy=False)


def walk(node: ast.AST, package: list[str], *, lazy: bool) -> Iterator[Import]:
    match node:
        case ast.Import(names=names):
            yield from (Import(node.lineno, alias.name, lazy) for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            base = [*package[: len(package) - level + 1], *filter(None, [module])] if level else [module or ""]
            yield from (Import(node.lineno, ".".join([*base, alias.name]), lazy) for alias in names)
        case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]) if called(func) in DYNAMIC:
            yield Import(node.lineno, name, lazy)
    inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from walk(child, package, lazy=inside or (for_types(node) and child in getattr(node, "body", ())))


def for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def called(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def test_arrows_point_down_only() -> None:
    assert SOURCE.is_dir()
    wrong = violations(SOURCE)
    assert not wrong, "wrong arrows:\n" + "\n".join(wrong)


def check_line(tmp_path: Path, name: str, code: str) -> list[str]:
    path = tmp_path / "src" / "rota" / name
    path.parent.mkdir(parents=True)
    path.write_text(code + "\n", encoding="utf-8")
    return violations(tmp_path / "src" / "rota")


@pytest.mark.parametrize(
    ("name", "code", "target"),
    [
        ("core/decide.py", "import time", "time"),
        ("core/decide.py", "from os import path", "os.path"),
        ("core/decide.py", "from datetime import datetime", "datetime.datetime"),
        ("core/decide.py", "def f():\n    import random", "random"),
        ("core/decide.py", "import structlog", "structlog"),
        ("core/decide.py", "from rota.app.ports import Clock", "rota.app.ports.Clock"),
        ("core/decide.py", "from ..app import ports", "rota.app.ports"),
        ("core/decide.py", "from rota import app", "rota.app"),
        ("app/loop.py", "from rota.adapters.store import Store", "rota.adapters.store.Store"),
        ("app/loop.py", "import sqlalchemy", "sqlalchemy"),
        ("app/loop.py", "if TYPE_CHECKING:\n    import rota.api.server", "rota.api.server"),
        ("adapters/clock.py", "from rota.app import service", "rota.app.service"),
        ("adapters/clock.py", "from rota.app import *", "rota.app.*"),
        ("adapters/backends/local.py", "from ...app.service import Service", "rota.app.service.Service"),
        ("adapters/clock.py", "from rota.api import server", "rota.api.server"),
        ("api/server.py", "from rota.adapters import clock", "rota.adapters.clock"),
        ("api/server.py", "from rota.cli import render", "rota.cli.render"),
        ("agent/tools.py", "def f():\n    import rota.api", "rota.api"),
        ("agent/tools.py", "importlib.import_module('rota.sim')", "rota.sim"),
        ("cli/main.py", "from rota.main import serve", "rota.main.serve"),
        ("cli/main.py", "import rota.sim.engine", "rota.sim.engine"),
        ("cli/main.py", "if TYPE_CHECKING:\n    pass\nelse:\n    import rota.sim.engine", "rota.sim.engine"),
        ("cli/main.py", "def f():\n    from rota.adapters import store", "rota.adapters.store"),
        ("sim/engine.py", "from rota.app import loop", "rota.app.loop"),
        ("sim/engine.py", "import sqlalchemy", "sqlalchemy"),
        ("config.py", "import pydantic", "pydantic"),
        ("observe.py", "from rota.core import run", "rota.core.run"),
        ("__init__.py", "from rota.core import run", "rota.core.run"),
    ],
)
def test_a_wrong_arrow_is_caught(tmp_path: Path, name: str, code: str, target: str) -> None:
    line = code.count("\n") + 1
    (wrong,) = check_line(tmp_path, name, code)
    assert wrong.startswith(f"src/rota/{name}:{line} imports {target}: ")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("core/decide.py", "from __future__ import annotations\nimport re, heapq\nfrom .run import Run"),
        ("core/decide.py", "from . import ids"),
        ("core/policy/order.py", "from ..run import Run\nfrom ...core import ids"),
        ("app/loop.py", "import threading, time\nfrom rota.core import run\nfrom .ports import Clock"),
        ("adapters/store/store.py", "import sqlalchemy\nfrom rota.app import ports\nfrom . import schema"),
        ("adapters/clock.py", "from rota.app.ports import Clock\nfrom rota import __version__"),
        ("api/server.py", "import json\nfrom rota.app.service import Service\nfrom rota import __version__"),
        ("cli/main.py", "if TYPE_CHECKING:\n    from rota.sim.model import Job"),
        ("cli/main.py", "import click\ndef up():\n    from rota.main import serve\n    import rota.sim.engine"),
        ("sim/engine.py", "import random\nfrom rota.core.decide import decide"),
        ("observe.py", "import logging"),
        ("__init__.py", "def __getattr__(name):\n    from rota.client import Client"),
        ("cli/submit.py", "from rota.client import Client"),
        ("main.py", "import sqlalchemy\nfrom rota import adapters, api, app, config"),
        ("__main__.py", "from rota.cli.start import main"),
    ],
)
def test_a_right_arrow_passes(tmp_path: Path, name: str, code: str) -> None:
    assert check_line(tmp_path, name, code) == []


def test_a_module_outside_every_zone_is_caught(tmp_path: Path) -> None:
    (wrong,) = check_line(tmp_path, "utils.py", "")
    assert wrong.startswith("src/rota/utils.py:1 belongs to no zone")
