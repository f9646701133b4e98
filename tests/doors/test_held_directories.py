"""A directory of a job that nobody can look into: its account can hold the lock of it for as long as it likes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rota.api import house as houses
from rota.api.doors import logs as door
from rota.api.render.links import Kept
from rota.api.render.whole import from_log
from rota.app.authz import Principal, Role
from rota.app.commands import Submit
from rota.app.errors import Unavailable
from tests.app.house import ANN, PATIENCE_S, ROOT, House

FILES = door._files
MALLORY = Principal("mallory", Role.USER)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path / "house").open()
    yield made
    made.finish()


class Held:
    """Directories whose lock is held until `let_go` is set; `looked_at` are all that were looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths, self.looked_at, self.let_go = set[Path](), list[Path](), threading.Event()
        monkeypatch.setattr(door, "_files", self.files)

    def files(self, directory: Path) -> list[dict[str, Any]]:
        self.looked_at.append(directory)
        if directory in self.paths:
            self.let_go.wait(PATIENCE_S)
        return FILES(directory)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    made = Held(monkeypatch)
    yield made
    made.let_go.set()


def api_house(house: House) -> Any:
    return SimpleNamespace(
        service=house.rota,
        settings=SimpleNamespace(data_dir=house.data, private=False),
        may_see=lambda who, run: True,
        tails=Kept(),
        files=houses._file_threads("rota-files"),
        job_dirs=houses._file_threads("rota-job-dirs"),
    )


def test_held_checkpoint_directories_cost_no_log_and_no_other_persons_artifacts(house: House, held: Held) -> None:
    asyncio.run(_read_beside_held_ones(house, held))


async def _read_beside_held_ones(house: House, held: Held) -> None:
    api = api_house(house)
    theirs = [house.submit('echo a; touch "$ROTA_CHECKPOINT_DIR/a"', who=MALLORY) for _ in range(5)]
    own = house.submit('echo b; touch "$ROTA_CHECKPOINT_DIR/b"', who=ANN)
    for run_id in (*theirs, own):
        await asyncio.to_thread(house.wait, run_id)
    held.paths = {house.data / "checkpoints" / run_id for run_id in theirs}
    api.job_dirs._limit_s = PATIENCE_S
    slow = [asyncio.ensure_future(door.artifacts(api, ROOT, run_id)) for run_id in theirs for _ in range(4)]
    async with asyncio.timeout(PATIENCE_S):
        while len(held.looked_at) < 4:
            await asyncio.sleep(0.01)
        found = json.loads(bytes((await door.artifacts(api, ROOT, own)).body))
        assert [one["name"] for one in found] == ["log of attempt 1", "b"]
        for run_id in (own, *theirs):
            assert json.loads(bytes((await door.logs(api, ROOT, run_id, 0, 10)).body))["total_size"] == 2
            assert await from_log(api, house.rota.run(run_id)) == {"links": [], "wandb_dir": None}
    assert len(held.looked_at) == 5, "four threads for all runs of that person"
    held.let_go.set()
    for answer in await asyncio.gather(*slow):
        assert [one["name"] for one in json.loads(bytes(answer.body))] == ["log of attempt 1", "a"]


def test_the_directory_of_a_run_that_never_started_is_not_looked_at(house: House, held: Held) -> None:
    run_id = house.do(Submit(house.spec("true", gpus=0), held=True)).id
    answer = asyncio.run(door.artifacts(api_house(house), ROOT, run_id))
    assert (json.loads(bytes(answer.body)), held.looked_at) == ([], [])


def test_a_held_directory_is_a_refusal_that_says_so(house: House, held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = house.submit('touch "$ROTA_CHECKPOINT_DIR/a"')
    house.wait(run_id)
    held.paths = {house.data / "checkpoints" / run_id}
    api = api_house(house)
    api.job_dirs._limit_s = 0.2
    with pytest.raises(Unavailable, match="ask again"):
        asyncio.run(door.artifacts(api, ROOT, run_id))
