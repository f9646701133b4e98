from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.adapters.backends.local import LocalBackend
from rota.app.ports import StopOrder
from rota.core.run import Exit
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig, wait_for


@pytest.fixture(params=[True, False], ids=["cgroups", "no cgroups"])
def rig(tmp_path: Path, request: pytest.FixtureRequest) -> LocalRig:
    return LocalRig(tmp_path, cgroups=request.param)


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
def backend(rig: LocalRig, reports: Reports) -> Iterator[LocalBackend]:
    backend = rig.backend()
    backend.open(reports)
    yield backend
    for stray in backend.strays():
        backend.stop(stray, StopOrder("cancelled", 9, 0.0))
        wait_for(lambda stray=stray: isinstance(backend.observe(stray), Exit), f"clean-up of {stray}")
    backend.close()
