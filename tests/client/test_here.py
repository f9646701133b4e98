"""A run from Python runs where the program is, and takes no argument that means nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rota.api.newrun import NewRun
from rota.api.newsweep import NewSweep
from rota.client import calls, environment, known

OWN_ARGUMENTS = {"argv", "auto_start", "command", "idempotency_key", "name", "workdir"}


def body(**named: Any) -> dict[str, Any]:
    sent: dict[str, Any] = calls.submit("true", **named).body
    return sent


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, value in {"COLOUR": "red", "ROTA_TOKEN": "canary", "SLURM_JOB_ID": "7"}.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def test_a_run_starts_here_with_what_is_set_here(here: Path) -> None:
    sent = body()
    assert sent["workdir"] == str(here)
    assert sent["env"]["COLOUR"] == "red"
    assert "canary" not in sent["env"].values()
    assert "SLURM_JOB_ID" not in sent["env"]


def test_what_is_said_goes_before_what_is_set(here: Path) -> None:
    env = body(env={"COLOUR": "blue=green", "SHAPE": "round"})["env"]
    assert (env["COLOUR"], env["SHAPE"]) == ("blue=green", "round")
    assert "PATH" in env
    assert body(env={"SHAPE": "round"}, inherit=False)["env"] == {"SHAPE": "round"}


def test_a_directory_that_is_said_is_seen_from_here(here: Path) -> None:
    assert body(workdir="deeper")["workdir"] == str(here / "deeper")
    assert "workdir" not in body(workdir=""), "the server's own"


def test_a_sweep_is_run_where_a_run_would_be(here: Path) -> None:
    sent: dict[str, Any] = calls.create_sweep("s", "true", {"x": [1, 2]}).body
    assert (sent["workdir"], sent["env"]) == (str(here), body()["env"])
    sent = calls.create_sweep("s", "true", {}, workdir="", env={"SHAPE": "round"}, inherit=False).body
    assert sent["env"] == {"SHAPE": "round"} and "workdir" not in sent


@pytest.mark.parametrize("inherit", [True, False])
def test_a_token_does_not_go_along_by_name_either(inherit: bool) -> None:
    with pytest.raises(ValueError, match="ROTA_TOKEN never goes along"):
        body(env={"ROTA_TOKEN": "canary"}, inherit=inherit)
    with pytest.raises(ValueError, match="'C=D' is not a name"):
        body(env={"C=D": "e"}, inherit=inherit)


def test_what_is_none_does_not_take_away_what_is_said() -> None:
    assert body(gpus=2, gpu_count=None)["gpu_count"] == 2
    sweep: dict[str, Any] = calls.create_sweep("s", "true", {}, gpus=2, gpu_count=None).body
    assert sweep["gpu_count"] == 2


@pytest.mark.parametrize(("wrong", "right"), [("gpu", "gpus"), ("time_limit", "time_limit_seconds")])
def test_a_slip_of_the_pen_is_named_with_what_was_meant(wrong: str, right: str) -> None:
    slip: dict[str, Any] = {wrong: 1}
    with pytest.raises(TypeError, match=rf"no argument '{wrong}'; did you mean .*{right}"):
        body(**slip)
    with pytest.raises(TypeError, match="rerun"):
        calls.rerun("0123456789ab", **slip)
    with pytest.raises(TypeError, match="create_sweep"):
        calls.create_sweep("s", "true", {}, **slip)


def test_every_field_of_the_server_is_known() -> None:
    assert set(NewRun.model_fields) - OWN_ARGUMENTS == known.OF_A_RUN
    own = OWN_ARGUMENTS - {"command"} | {"base_command", "max_runs", "parameters"}
    assert set(NewSweep.model_fields) - own == known.OF_A_SWEEP


def test_what_stays_behind_is_told_by_name() -> None:
    """On the page that promises it: whoever adds a name here, adds it there."""
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    told = page.split("## What goes along with a run\n")[1].split("**Every other secret goes along**")[0]
    names = environment.SECRETS | environment.OWN | set(environment.OWN_BEGINNINGS)
    assert [name for name in sorted(names) if f"`{name}`" not in told] == []
    others = {"HF_TOKEN": "canary", "GITHUB_TOKEN": "canary"}
    assert environment.exported("ALL", {**dict.fromkeys(names, "x"), **others}) == others
    assert environment.exported("NONE,HF_TOKEN", {**others, "HOME": "/"}) == {"HF_TOKEN": "canary", "HOME": "/"}
