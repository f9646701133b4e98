"""`rota login --link`: from a shell that is known already to a browser that is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rota.cli.commands import login
from tests.cli.lab import Lab
from tests.doors.server import curl


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("login")) as made:
        yield made


def opened(link: str) -> str:
    """Whom the server takes a browser for that has followed it."""
    first = curl(link, headers=["Accept: text/html"])
    assert first.status == 303, first.body
    cookie = first.headers["set-cookie"].partition(";")[0]
    name: str = curl(f"{link.partition('/login')[0]}/whoami", headers=[f"Cookie: {cookie}"]).ok()["name"]
    return name


def test_a_link_for_oneself_and_by_an_admin_for_others(lab: Lab, tmp_path: Path) -> None:
    none, needless = lab.rota("login", "--link"), lab.rota("login", "--link", "--server", lab.server.url)
    assert (none.returncode, needless.returncode) == (75, 75)
    assert b"rota token create" in none.stderr
    assert b"needs no login" in needless.stderr, "a server without tokens is open"

    ann, root = (lab.json("token", "create", "--user", name, "--role", "admin", "--json") for name in ("ann", "root"))
    own = lab.out("login", "--link").strip()
    assert own.startswith(f"{lab.server.url}/login?code="), "also by one who came through the socket"
    assert opened(own) == "root"
    assert curl(own).status == 401, "once"
    assert "rota login --link" in curl(own).json["detail"]
    assert opened(lab.out("login", "--link", "--token-id", ann["id"]).strip()) == "ann"

    ben = lab.json("token", "create", "--user", "ben", "--json")
    far = {"PATH": lab.env["PATH"], "PYTHONPATH": lab.env["PYTHONPATH"], "HOME": str(tmp_path)}
    far |= {"ROTA_URL": lab.server.url, "ROTA_TOKEN": ben["token"]}
    assert opened(lab.out("login", "--link", env=far).strip()) == "ben", "a person who is no admin"
    assert not (tmp_path / ".config").exists(), "nothing is stored"
    denied = lab.rota("login", "--link", "--token-id", root["id"], env=far)
    assert denied.returncode == 77
    assert denied.stdout == b""
    assert lab.rota("login", "--link", "rota_abc", env=far).returncode == 2
    assert lab.rota("login", "--token-id", root["id"], env=far).returncode == 2


def test_somebody_known_by_their_account_alone_is_not_told_that_they_have_no_token(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Who is no admin may not look for it, nor make one."""
    me = SimpleNamespace(token_id="", role="user", name="ann", known_by="socket")
    client: Any = SimpleNamespace(whoami=lambda: me)
    with pytest.raises(SystemExit) as end:
        login._own(client)
    said = capsys.readouterr().err
    assert end.value.code == 75
    assert "has no token" not in said and "token create" not in said
    assert "`rota login`" in said and "ask an admin" in said
