from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rota.adapters.backends.local import LocalBackend
from rota.app.ports import StopOrder
from tests.backends.contract import Reports, is_over
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
        wait_for(partial(is_over, backend, stray), f"clean-up of {stray}")
    backend.close()
