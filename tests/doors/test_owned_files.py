"""A server knows the names of all that it keeps in its data directory: only those are judged by their mode."""

from __future__ import annotations

from rota.adapters.ownership import USED
from tests.app.house import until
from tests.doors.server import Server


def test_every_file_of_a_server_is_judged_before_the_next_start(server: Server) -> None:
    run_id = server.submit("true")
    until(lambda: server.get(f"/runs/{run_id}").ok()["status"] == "finished", "the run has ended")
    names = {path.name for path in server.data.iterdir()}
    assert {"rota.db", "attempts", "zygote.log"} <= names
    assert {name for name in names if name[0] != "." and not name.endswith(".new")} <= {*USED}
