"""Which variables go along with a run: the caller's own, no token, nothing that names the job around them."""

from __future__ import annotations

import os

import pytest

from rota.cli.environment import SECRETS, exported, unset
from rota.client.address import TOKEN_NAMES
from rota.config import SOURCES

MINE = {"PATH": "/bin", "HOME": "/h", "A": "1", "B": "2"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", {"PATH", "HOME", "A", "B"}),
        ("ALL", {"PATH", "HOME", "A", "B"}),
        ("NONE", {"PATH", "HOME"}),
        ("A", {"PATH", "A"}),
        ("A=9,C=x=y", {"PATH", "A", "C"}),
        ("ALL,C=1", {"PATH", "HOME", "A", "B", "C"}),
        ("C='1,2',D=3", {"PATH", "C", "D"}),
        ("NOT_THERE", {"PATH"}),
    ],
)
def test_what_is_chosen(text: str, names: set[str]) -> None:
    assert set(exported(text, MINE)) == names


def test_values_are_kept_as_they_are() -> None:
    assert exported("C='1,2',D=x=y", {}) == {"C": "1,2", "D": "x=y"}
    assert exported("NONE", {"B": "2"}, ("C=a=b", "D='1,2'", "B")) == {"C": "a=b", "D": "'1,2'", "B": "2"}
    assert exported("ALL", MINE, ("A=9",))["A"] == "9"


def test_names_that_are_none() -> None:
    mine = {"odd.name": "x", "BASH_FUNC_module%%": "() { :; }"}
    assert exported("ALL", mine) == {"BASH_FUNC_module%%": "() { :; }"}
    for text, pairs in (("a-b=1", ()), ("ALL", ("9=x",)), ("ALL", ("=",))):
        with pytest.raises(ValueError, match="not a name"):
            exported(text, mine, pairs)


def test_the_job_around_us_stays_behind() -> None:
    """A submit from inside a job: the new run gets an id, GPUs, a rank of its own."""
    around = {"CUDA_VISIBLE_DEVICES": "3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "ROTA_JOB_ID": "x", "ROTA_NODE_RANK": "1"}
    around |= {"SLURM_JOB_ID": "x", "SLURM_ARRAY_TASK_ID": "7", "SBATCH_PARTITION": "p", "GPUSCHED_URL": "u"}
    shell = {"PWD": "/old", "OLDPWD": "/older", "SHLVL": "3", "_": "/bin/rota"}
    assert exported("ALL", {**around, **shell, "CUDA_HOME": "/cuda"}) == {"CUDA_HOME": "/cuda"}
    assert exported("ALL", around, ("SLURM_ARRAY_TASK_ID",)) == {"SLURM_ARRAY_TASK_ID": "7"}, "unless named"


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_a_secret_never_goes_along(name: str) -> None:
    assert exported("ALL", {name: "canary", "A": "1"}) == {"A": "1"}
    for text, pairs in ((name, ()), (f"{name}=canary", ()), ("ALL", (name,)), ("ALL", (f"{name}=canary",))):
        with pytest.raises(ValueError, match=f"{name} never goes along") as told:
            exported(text, {name: "canary"}, pairs)
        assert "canary" not in str(told.value)


def test_what_is_no_text_stays_behind_and_is_not_to_be_had_by_name() -> None:
    odd = {**MINE, "ODD": os.fsdecode(b"\xff")}
    assert set(exported("ALL", odd)) == {"PATH", "HOME", "A", "B"}
    path = {"PATH": os.fsdecode(b"/bin:/opt/\xff:/usr/bin"), "HOME": os.fsdecode(b"/\xff")}
    assert exported("ALL", path) == exported("NONE", path) == {"PATH": "/bin:/usr/bin"}
    for asked in ({"text": "ODD"}, {"text": "ALL", "pairs": ["ODD"]}):
        with pytest.raises(ValueError, match="ODD holds bytes that are no text"):
            exported(env=odd, **asked)


def test_every_secret_that_rota_reads_is_known_here() -> None:
    secret = [source for source in SOURCES if source.field in ("shared_token", "database_url")]
    assert {*TOKEN_NAMES, *(name for source in secret for name in source.variables)} == SECRETS


@pytest.mark.parametrize(
    ("text", "pairs", "names"),
    [
        ("ALL", (), []),
        ("NONE", ("A", "C", "C"), ["C"]),
        ("BOGUS,A,C=1", ("D=x",), ["BOGUS"]),
        ("nil,all", (), []),
        ("C='1,B2',\"D,E\",F", (), ["F"]),
    ],
)
def test_what_is_named_and_not_there(text: str, pairs: tuple[str, ...], names: list[str]) -> None:
    assert unset(text, MINE, pairs) == names
