from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rota.adapters import processes
from rota.adapters.backends import confine
from rota.adapters.backends.local import LocalBackend
from rota.adapters.backends.lookers import Lookers
from rota.adapters.backends.shim import Shim
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig, opened


@pytest.fixture(scope="module")
def enforced() -> frozenset[str]:
    """Controllers that this machine lets this account use."""
    found = confine.probe(f"rota-{os.getpid():08x}")
    for base in found.bases():
        confine.clear(base)
        confine.try_remove(base)
    return frozenset(found.limits)


@pytest.fixture
def needs(enforced: frozenset[str]) -> Callable[..., None]:
    def check(*controllers: str) -> None:
        if missing := sorted(set(controllers) - enforced):
            pytest.skip(f"this account may not use the cgroup controllers {missing} (needs root, or a delegated group)")

    return check


@pytest.fixture(params=[True, False], ids=["cgroups", "no cgroups"])
def rig(tmp_path: Path, request: pytest.FixtureRequest) -> LocalRig:
    return LocalRig(tmp_path, cgroups=request.param)


@pytest.fixture
def shim(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shim]:
    """A supervisor inside the test's own process, with the module's ORDER; it has started nothing."""
    log = os.open(tmp_path / "log", os.O_CREAT | os.O_RDWR)
    house: Any = SimpleNamespace(group="", boot_id="boot", least_free=0)
    yield Shim(house, "0123456789ab-1", request.module.ORDER, log)
    os.close(log)


@pytest.fixture(autouse=True)
def patient_looks() -> Iterator[None]:
    """A look has as long as a slow machine takes to start who looks, but in a test that says how long."""
    assert Lookers.call.__kwdefaults__ is not None
    with pytest.MonkeyPatch.context() as patched:  # its own: tests undo theirs midway
        patched.setitem(Lookers.call.__kwdefaults__, "within_s", 20.0)
        patched.setattr(processes, "WITHIN_S", 20.0)
        yield


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
def backend(rig: LocalRig, reports: Reports) -> Iterator[LocalBackend]:
    with opened(rig, reports) as backend:
        yield backend
