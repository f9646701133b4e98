"""The local backend keeps the contract, with cgroups where the machine gives them and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.contract import BackendContract
from tests.backends.helpers import LocalRig


class TestLocal(BackendContract):
    @pytest.fixture(params=[True, False], ids=["cgroups", "no cgroups"])
    def rig(self, tmp_path: Path, request: pytest.FixtureRequest) -> LocalRig:
        return LocalRig(tmp_path, cgroups=request.param)
