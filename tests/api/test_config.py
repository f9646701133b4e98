"""Settings: every variable and every alias counts, flags win, and a bad value is named without being a leak."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rota.app.errors import CannotStart
from rota.config import NOTICED, SOURCES, BadSetting, Settings, default_data_dir, read_settings
from rota.main import open_rota

HOME = {"HOME": "/home/ann"}
# for every variable a value that is not the default, and what it means
MEANS: dict[str, tuple[str, Any]] = {
    "ROTA_DATA_DIR": ("/srv/rota", Path("/srv/rota")),
    "ROTA_DATABASE_URL": ("postgresql://u:p@h/d", "postgresql://u:p@h/d"),
    "ROTA_SIMULATE": ("3x4", (3, 4)),
    "ROTA_HOST": ("10.0.0.1", "10.0.0.1"),
    "ROTA_PORT": (" 8080 ", 8080),
    "ROTA_LEASE_PORT": ("0", 0),
    "GPUSCHED_PORT": ("9999", 9999),
    "ROTA_UNIX_SOCKET": ("no", False),
    "ROTA_WORKDIR": ("/usr/../usr", "/usr"),
    "ROTA_SHARED_TOKEN": (" sesame\n", "sesame"),
    "RESEARCH_AGENT_USER_AUTH_TOKEN": ("sesame", "sesame"),
    "ROTA_SCHEDULING": ("off", False),
    "RESEARCH_AGENT_GPU_ORCHESTRATION_ENABLED": ("False", False),
    "ROTA_SCHEDULING_POLICY": ("FCFS", "fcfs"),
    "RESEARCH_AGENT_SCHEDULING_POLICY": ("fair_share", "fair_share"),
    "ROTA_QUEUE_CAPACITY": ("7", 7),
    "RESEARCH_AGENT_MAX_QUEUE_SIZE": ("8", 8),
    "ROTA_CLUSTER_TYPE": ("Local-GPU", "local_gpu"),
    "RESEARCH_AGENT_CLUSTER_TYPE": ("k8s", "kubernetes"),
    "ROTA_TMUX_SESSION": ("lab 1", "lab 1"),
    "RESEARCH_AGENT_TMUX_SESSION": ("research-agent", "research-agent"),
    "RAY_ADDRESS": ("auto", "auto"),
    "ROTA_SERVER_URL": ("https://rota.lab", "https://rota.lab"),
    "RESEARCH_AGENT_SERVER_URL": ("http://gpu:1", "http://gpu:1"),
    "ROTA_ALLOWED_HOSTS": (" GPU.lab, rota.lab ,", ("gpu.lab", "rota.lab")),
    "ROTA_PRIVACY": ("private", True),
    "ROTA_RUN_AS": ("nobody", "nobody"),
    "ROTA_LOGIN_TRIES": ("3", 3),
    "ROTA_AGENT_CALLS": ("60", 60),
    "ROTA_DISK_FLOOR_MB": ("512", 512),
    "ROTA_PERSON_METRICS_MB": ("10", 10),
    "ROTA_PERSON_CHECKPOINTS_MB": ("20", 20),
    "ROTA_PERSON_LIVE_MB": ("8", 8),
    "ROTA_PERSON_LEDGER_MB": ("0", 0),
    "ROTA_REQUEST_SECONDS": ("60", 60),
    "ROTA_MAX_PROCESSES": ("500", 500),
}
FIELD = {name: source.field for source in SOURCES for name in source.variables}


def test_every_variable_is_tried_here() -> None:
    assert set(MEANS) == set(FIELD)


@pytest.mark.parametrize("name", MEANS)
def test_each_variable_counts(name: str) -> None:
    text, value = MEANS[name]
    settings, origins = read_settings({}, {**HOME, name: text})
    assert getattr(settings, FIELD[name]) == value
    assert origins[FIELD[name]] == name
    assert [field for field, origin in origins.items() if origin != "default"] == [FIELD[name]]


@pytest.mark.parametrize("source", [source for source in SOURCES if len(source.variables) > 1], ids=lambda s: s.field)
def test_ours_wins_over_an_older_one(source: Any) -> None:
    ours, older = source.variables
    settings, origins = read_settings({}, {**HOME, ours: MEANS[ours][0], older: MEANS[older][0]})
    assert getattr(settings, source.field) == MEANS[ours][1]
    assert origins[source.field] == ours


@pytest.mark.parametrize("name", MEANS)
def test_an_empty_variable_is_an_unset_one(name: str) -> None:
    assert read_settings({}, {**HOME, name: ""}) == read_settings({}, HOME)


def test_a_flag_wins_over_all() -> None:
    settings, origins = read_settings({"port": 1, "host": None}, {**HOME, "ROTA_PORT": "2", "ROTA_HOST": "h"})
    assert (settings.port, origins["port"]) == (1, "flag")
    assert (settings.host, origins["host"]) == ("h", "ROTA_HOST"), "a flag that was not given says nothing"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ROTA_PORT", "65536"), ("ROTA_PORT", "-1"), ("ROTA_PORT", "1e3"), ("ROTA_PORT", "٣"), ("ROTA_PORT", "0x50"),
        ("GPUSCHED_PORT", "none"), ("ROTA_SIMULATE", "2"), ("ROTA_SIMULATE", "0x8"), ("ROTA_SIMULATE", "9999x64"),
        ("ROTA_SIMULATE", "2x8x"), ("RESEARCH_AGENT_GPU_ORCHESTRATION_ENABLED", "maybe"), ("ROTA_UNIX_SOCKET", "2"),
        ("RESEARCH_AGENT_SCHEDULING_POLICY", "best"), ("RESEARCH_AGENT_MAX_QUEUE_SIZE", "0"),
        ("RESEARCH_AGENT_MAX_QUEUE_SIZE", "9" * 5000), ("ROTA_PRIVACY", "yes"), ("ROTA_LOGIN_TRIES", "0"),
        ("RESEARCH_AGENT_CLUSTER_TYPE", "bogus"), ("ROTA_CLUSTER_TYPE", "slurm,ray"),
        ("ROTA_WORKDIR", "/no/such/place"), ("ROTA_WORKDIR", "/etc/passwd"),
        ("ROTA_TMUX_SESSION", "a:b"), ("RESEARCH_AGENT_TMUX_SESSION", "-x"),
        ("ROTA_AGENT_CALLS", "ten"), ("ROTA_SHARED_TOKEN", "   "), ("RESEARCH_AGENT_USER_AUTH_TOKEN", "se\x01same"),
    ],
)  # fmt: skip
def test_a_bad_value_is_named(name: str, text: str) -> None:
    with pytest.raises(BadSetting) as caught:
        read_settings({}, {**HOME, name: text})
    said = str(caught.value)
    assert said.startswith(name)
    assert len(said) < 400
    words = said.partition("is not one of ")[2].split(", ")
    assert len(words) == len(set(words)), "each right value once"
    if "TOKEN" in name:
        assert text.strip() == "" or text not in said, "no secret is shown"
        assert "same" not in said


def test_blanks_are_no_way_to_an_open_server() -> None:
    """A token of blanks alone must be refused, and not turn out to be none."""
    with pytest.raises(BadSetting):
        read_settings({}, {**HOME, "RESEARCH_AGENT_USER_AUTH_TOKEN": "\t \n"})


def test_what_is_said_of_where_things_lie() -> None:
    assert default_data_dir({"HOME": "/home/ann"}) == Path("/home/ann/.local/share/rota")
    assert default_data_dir({"HOME": "/h", "XDG_DATA_HOME": "/x"}) == Path("/x/rota")
    assert default_data_dir({}) == Path("/var/lib/.local/share/rota")
    assert default_data_dir({"ROTA_DATA_DIR": "/d", "XDG_DATA_HOME": "/x"}) == Path("/d")


def test_the_defaults_are_those_clients_know() -> None:
    settings, _ = read_settings({}, HOME)
    assert settings == Settings(Path("/home/ann/.local/share/rota"))
    assert (settings.host, settings.port, settings.lease_port) == ("127.0.0.1", 10000, 9123)
    assert (settings.queue_capacity, settings.scheduling, settings.shared_token) == (100, True, "")
    assert set(NOTICED) == {"GPUSCHED_URL"}


def test_an_unknown_kind_of_cluster_is_told_the_known_ones() -> None:
    with pytest.raises(BadSetting, match=r"slurm.*local_gpu.*cpu_only"):
        read_settings({}, {**HOME, "RESEARCH_AGENT_CLUSTER_TYPE": "bogus"})


def test_a_working_directory_is_there_whoever_named_it(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"^--workdir: .*is not a directory"):
        read_settings({"workdir": str(tmp_path / "no")}, HOME)
    settings, _ = read_settings({"workdir": str(tmp_path)}, {**HOME, "ROTA_WORKDIR": "/no/such/place"})
    assert settings.workdir == str(tmp_path), "what is not used need not be there"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"database_url": "bla"}, "--database-url"),
        ({"database_url": "sqlite:///relative.db"}, "sqlite:////absolute/path"),
        ({"database_url": "mysql://ann:canary@host/db"}, "postgresql://"),
        ({"run_as": "nosuchaccount"}, "'nosuchaccount' is no account on this machine"),
        ({"run_as": "root"}, "--run-as"),
    ],
)
def test_what_the_machine_cannot_make_sense_of_stops_the_start(
    tmp_path: Path, given: dict[str, str], words: str
) -> None:
    with pytest.raises(CannotStart, match=re.escape(words)) as refusal, open_rota(Settings(tmp_path / "data", **given)):  # type: ignore[arg-type]
        pass
    assert "canary" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == [], "nothing was made"
