"""`rota top`: the panes as values, and the whole screen with keys against a real server."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from rota.cli.tui import draw
from rota.cli.tui.app import Top
from rota.cli.tui.look import Look
from rota.cli.tui.screens import Ask, Details
from rota.client.model.cluster import job, node
from rota.client.model.run import explanation, run
from tests.app.house import PATIENCE_S
from tests.cli.lab import Lab

EVIL = "[red]x[/red]\x1b[31m\u202e"


# -- values ----------------------------------------------------------------------------------------------------------
def gpu(number: int, status: str = "available", user: str | None = None) -> dict[str, Any]:
    return {"node_id": "n", "gpu_id": number, "status": status, "user": user}


def test_the_grid_says_who_holds_what() -> None:
    gpus = [gpu(0, "allocated", "ann"), gpu(1, "allocated", "bartholomew"), gpu(2), gpu(3, "error"), gpu(4, "offline")]
    nodes = [
        node({"node_id": "node1", "gpus": gpus}),
        node({"node_id": "node2", "gpus": [gpu(0)], "drained": True, "drain_why": "new fan"}),
        node({"node_id": "node3", "gpus": [], "alive": False}),
    ]
    assert draw.gpu_lines(nodes, 60) == [
        "node1  0:ann   1:bart… 2:·     3:!     4:-",
        "node2  0:·  drained: new fan",
        "node3  no GPUs  does not answer",
    ]
    assert draw.gpu_lines(nodes[:1], 30) == ["node1  0:ann   1:bart…", "       2:·     3:!", "       4:-"]
    assert draw.gpu_lines([], 80) == []


def test_rows_are_plain_text() -> None:
    waiting = job({"id": "aaaaaaaaaaaa", "name": EVIL, "user": "ann", "gpu_count": 2, "submitted_at": 100.0})
    mine = run({"id": "bbbbbbbbbbbb", "name": EVIL, "status": "running", "gpu_count": 1, "started_at": 90.0})
    why = explanation({"reasons": [{"code": "resources", "text": EVIL, "runs": []}], "eta": 400.0})
    seen = Look(160.0, "ann", (), (waiting,), (mine,), {"aaaaaaaaaaaa": why})
    rows = draw.queue_rows(seen)
    assert rows["aaaaaaaaaaaa"][2:6] == ("ann", "2", "1m", "in 4m")
    assert draw.mine_rows(seen)["bbbbbbbbbbbb"][2:5] == ("running", "1", "1m")
    about = draw.details(mine, why)
    for text in (*rows["aaaaaaaaaaaa"], *draw.mine_rows(seen)["bbbbbbbbbbbb"], *about, *draw.log_lines(EVIL)):
        assert text.isprintable(), text
    assert draw.queue_rows(seen, "ANN")
    assert not draw.queue_rows(seen, "ben")


@pytest.mark.parametrize(("seconds", "text"), [(-3, "0s"), (59, "59s"), (61, "1m"), (3900, "1h05"), (200000, "2d")])
def test_spans(seconds: float, text: str) -> None:
    assert draw.span(seconds) == text


# -- the screen ------------------------------------------------------------------------------------------------------
def piloted(lab: Lab, story: Callable[[Top, Pilot[int]], Awaitable[None]]) -> None:
    async def play() -> None:
        with lab.client() as client:
            top = Top(client, every_s=0.1)
            async with top.run_test(size=(80, 24)) as pilot:
                await story(top, pilot)

    asyncio.run(play())


async def comes(pilot: Pilot[int], look: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < deadline, what
        await pilot.pause(0.05)


def words(top: Top, selector: str) -> str:
    return str(top.screen.query_one(selector, Static).content)


def keys(top: Top, name: str) -> list[str]:
    table: DataTable[Any] = top.screen_stack[0].query_one(f"#{name}", DataTable)
    return [row.value or "" for row in table.rows]


def test_it_shows_opens_filters_and_cancels(lab: Lab) -> None:
    running = lab.sbatch("-G8", "-N2", "-J", "[red]x[/red]", "--wrap", "echo 'first [b]line[/b]'; sleep 300")
    lab.wait_for(running, "running")
    waiting = lab.sbatch("-G4", "-J", "patient", "--wrap", "true")

    async def story(top: Top, pilot: Pilot[int]) -> None:
        await comes(pilot, lambda: keys(top, "queue") == [waiting], "the queue is shown")
        assert keys(top, "mine") == [waiting, running]
        assert "0 of 8 free" in words(top, "#heading")
        assert words(top, "#grid").splitlines()[0] == "node1  0:root  1:root  2:root  3:root"
        for name in ("queue", "mine"):
            table = top.query_one(f"#{name}", DataTable)
            assert table.size.height >= 3, "each pane has room at 80x24"

        await pilot.press("enter")
        await comes(
            pilot, lambda: isinstance(top.screen, Details) and "waits: " in words(top, "#about"), "why it waits"
        )
        await pilot.press("escape")

        await pilot.press("slash", *"nothing like it")
        await comes(pilot, lambda: keys(top, "queue") == keys(top, "mine") == [], "the filter holds")
        await pilot.press("escape")
        await comes(pilot, lambda: keys(top, "queue") == [waiting], "the filter is gone")

        top.query_one("#mine", DataTable).focus()
        await pilot.press("down", "enter")
        await comes(pilot, lambda: isinstance(top.screen, Details) and "[b]line" in words(top, "#log"), "its log")
        assert running in words(top, "#about")
        await pilot.press("q")

        await pilot.press("c")
        await comes(pilot, lambda: isinstance(top.screen, Ask), "it asks")
        await pilot.press("n")
        assert await asyncio.to_thread(lab.state, running) == "running"
        await pilot.press("c")
        await comes(pilot, lambda: isinstance(top.screen, Ask), "it asks again")
        await pilot.press("y")
        await asyncio.to_thread(lab.wait_for, running, "stopped")
        await asyncio.to_thread(lab.wait_for, waiting, "finished")
        await comes(pilot, lambda: keys(top, "queue") == [], "the queue is empty")
        await pilot.press("q")

    piloted(lab, story)


@pytest.mark.parametrize("where", [(), ("slash",), ("enter",), ("c",)], ids=["panes", "filter", "details", "ask"])
def test_ctrl_c_leaves_from_everywhere(lab: Lab, where: tuple[str, ...]) -> None:
    waiting = lab.submit("--held", "--", "true")

    async def story(top: Top, pilot: Pilot[int]) -> None:
        await comes(pilot, lambda: keys(top, "mine") == [waiting], "the first look")
        await pilot.press(*where)
        assert top.return_code is None
        await pilot.press("ctrl+c")
        assert top.return_code == 0

    piloted(lab, story)


def test_it_survives_a_lost_server(lab: Lab) -> None:
    async def story(top: Top, pilot: Pilot[int]) -> None:
        await comes(pilot, lambda: "8 of 8 free" in words(top, "#heading"), "the first look")
        await asyncio.to_thread(lab.server.kill)
        await comes(pilot, lambda: "trying again" in words(top, "#heading"), "it says that the server is gone")
        await asyncio.to_thread(lab.server.start)
        await comes(pilot, lambda: "8 of 8 free" in words(top, "#heading"), "it is back")

    piloted(lab, story)


# -- the command -------------------------------------------------------------------------------------------------------
def test_in_a_pipe_and_without_a_server_it_says_so(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.env["ROTA_URL"] = "http://127.0.0.1:1"
    ended = lab.rota("top")
    assert ended.returncode == 75
    assert b"needs a terminal" in ended.stderr
    ours, theirs = pty.openpty()
    ended = lab.rota("top", stdout=theirs)
    os.close(theirs)
    os.close(ours)
    assert ended.returncode == 69
    assert b"rota up" in ended.stderr


def test_without_the_library_it_says_what_to_install(tmp_path: Path) -> None:
    line = (
        "import sys; sys.modules['textual'] = None; sys.argv = ['rota', 'top']; from rota.cli.main import main; main()"
    )
    env = Lab(tmp_path).env
    ended = subprocess.run(
        [sys.executable, "-c", line], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 75
    assert "pip install 'rota[tui]'" in ended.stderr
