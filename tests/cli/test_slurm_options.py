"""Slurm's command lines, read as Slurm reads them."""

from __future__ import annotations

import pytest

from rota.cli.slurm import batchopts, sacct, sbatch, scancel, sinfo, squeue, srun
from rota.cli.slurm.options import Given, Option, Takes, UsageError, parse

TABLE = (
    Option("help", "h", Takes.NOTHING),
    Option("hold", "H", Takes.NOTHING),
    Option("nodes", "N"),
    Option("nodelist", "w"),
    Option("nice", "", Takes.PERHAPS),
    Option("immediate", "I", Takes.PERHAPS),
    Option("qos", "q", note="there is none"),
    Option("begin", "b", refusal="use --hold"),
)


@pytest.mark.parametrize(
    ("words", "given", "rest"),
    [
        (["-N2"], [("nodes", "2")], []),
        (["-N", "2"], [("nodes", "2")], []),
        (["--nodes=2"], [("nodes", "2")], []),
        (["--nodes", "2"], [("nodes", "2")], []),
        (["--nodes="], [("nodes", "")], []),
        (["-hHN2"], [("help", ""), ("hold", ""), ("nodes", "2")], []),
        (["-hN", "2", "x"], [("help", ""), ("nodes", "2")], ["x"]),
        (["-N", "-1"], [("nodes", "-1")], []),
        (["--hel"], [("help", "")], []),
        (["--nice"], [("nice", "")], []),
        (["--nice=5"], [("nice", "5")], []),
        (["--nice", "5"], [("nice", "")], ["5"]),
        (["-I"], [("immediate", "")], []),
        (["-I5"], [("immediate", "5")], []),
        (["-N1", "cmd", "-N2", "--", "-h"], [("nodes", "1")], ["cmd", "-N2", "--", "-h"]),
        (["--", "-N2"], [], ["-N2"]),
        (["-", "-h"], [], ["-", "-h"]),
        ([], [], []),
    ],
)
def test_words(words: list[str], given: list[tuple[str, str]], rest: list[str]) -> None:
    parsed = parse(words, TABLE)
    assert list(parsed.given) == [Given(*pair) for pair in given]
    assert list(parsed.rest) == rest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nonsense"], "unrecognized option '--nonsense'"),
        (["--nonsense=3"], "unrecognized option '--nonsense'"),
        (["-z"], "invalid option -- 'z'"),
        (["-hz"], "invalid option -- 'z'"),
        (["--node=1"], "option '--node' is ambiguous; possibilities: '--nodes' '--nodelist'"),
        (["--nodes"], "option '--nodes' requires an argument"),
        (["-N"], "option requires an argument -- 'N'"),
        (["--help=yes"], "option '--help' doesn't allow an argument"),
        (["--begin=now"], "--begin: use --hold"),
        (["-b", "now"], "--begin: use --hold"),
    ],
)
def test_what_is_wrong_is_named(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("(", r"\(")):
        parse(words, TABLE)


def test_what_is_ignored_is_said_and_not_given() -> None:
    parsed = parse(["-q", "long", "-N1"], TABLE)
    assert parsed.notes == ("--qos is ignored: there is none",)
    assert not parsed.has("qos")


def test_the_last_one_counts() -> None:
    assert parse(["-N1", "--nodes=2", "-N3"], TABLE).last("nodes") == "3"
    assert parse([], TABLE).last("nodes") is None


def test_tools_without_a_command_take_options_anywhere() -> None:
    parsed = parse(["12", "-h", "13"], TABLE, interspersed=True)
    assert parsed.has("help")
    assert parsed.rest == ("12", "13")


@pytest.mark.parametrize("table", [batchopts.TABLE, srun.TABLE, squeue.TABLE, scancel.TABLE, sinfo.TABLE, sacct.TABLE])
def test_a_table_names_nothing_twice(table: tuple[Option, ...]) -> None:
    longs = [option.long for option in table]
    shorts = [option.short for option in table if option.short]
    assert len(set(longs)) == len(longs)
    assert len(set(shorts)) == len(shorts)
    assert not [option.long for option in table if option.note and option.refusal]


def test_sbatch_refuses_an_empty_directory() -> None:
    with pytest.raises(UsageError, match="--chdir is empty"):
        sbatch._body(parse(["--chdir=", "--wrap", "true"], batchopts.TABLE), sbatch.Work("wrap", ("true",)))
