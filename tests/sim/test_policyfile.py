from __future__ import annotations

from pathlib import Path

import pytest

from rota.core.policy import Backfill, Limits, Ordering
from rota.core.presets import NAMES
from rota.sim.policyfile import BadPolicy, read_policy


def test_a_policy_by_its_name() -> None:
    for name in NAMES:
        assert read_policy(name)[0] == name
    strict = read_policy("fcfs-strict")[1]
    assert (strict.ordering, strict.backfill) == (Ordering.FCFS, Backfill.NONE)


def test_a_file_says_what_is_different_from_its_base(tmp_path: Path) -> None:
    file = tmp_path / "ours.toml"
    file.write_text(
        'base = "easy"\nordering = "priority"\naging_s = 3600\npreemption = true\nbackfill_depth = 9\n'
        "[limits]\ngpus = 16\n[user_limits.ann]\nrunning = 3\nqueued = 4\n"
    )
    name, policy = read_policy(str(file))
    assert name == "ours"
    assert (policy.ordering, policy.backfill) == (Ordering.PRIORITY, read_policy("easy")[1].backfill)
    assert (policy.aging_s, policy.preemption, policy.backfill_depth) == (3600.0, True, 9)
    assert (policy.limits, policy.user_limits) == (Limits(gpus=16), {"ann": Limits(running=3, queued=4)})


def test_a_file_has_the_words_of_the_server(tmp_path: Path) -> None:
    file = tmp_path / "ours.toml"
    file.write_text("min_run_seconds = 5\nenable_preemption = false\nscheduling_algorithm = 'sjf'\nsjf_aging = 0.5\n")
    policy = read_policy(str(file))[1]
    assert (policy.min_run_s, policy.preemption, policy.ordering, policy.sjf_aging) == (5.0, False, Ordering.SJF, 0.5)


def test_without_a_base_it_is_the_one_we_recommend(tmp_path: Path) -> None:
    file = tmp_path / "empty.toml"
    file.write_text("")
    assert read_policy(str(file)) == ("empty", read_policy("auto")[1])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('base = "slurm"\n', "base: 'slurm' is no policy; use one of fcfs-strict, "),
        ("base = 3\n", "base: 3 is no policy"),
        ("base = []\n", "base: [] is no policy"),
        ("agings_s = 5\n", "agings_s: unknown key; use base, scheduling_algorithm, "),
        ("min_run_seconds = -5\n", "min_run_seconds: -5.0 is out of range, use 0 to"),
        ("min_run_seconds = 5\nmin_run_s = 6\n", "min_run_s: is the same as min_run_seconds; write one of the two"),
        ('ordering = "lifo"\n', "ordering: 'lifo' is wrong, use one of fcfs, priority, sjf, fair_share, "),
        ("ordering = 3\n", "ordering: 3 is wrong"),
        ("ordering = []\n", "ordering: [] is wrong"),
        ('aging_s = "1d"\n', "aging_s: is not a number but str ('1d')"),
        ("aging_s = true\n", "aging_s: is not a number but bool"),
        ("backfill_depth = 2.5\n", "backfill_depth: is not of type int but float"),
        ("preemption = 1\n", "preemption: is not of type bool but int"),
        ("aging_s = nan\n", "aging_s: nan is out of range, use 1 to 1e+12"),
        ("half_life_s = 5\n", "half_life_s: 5.0 is out of range, use 60 to 1e+12"),
        ("limits = 3\n", "limits: is not a table; write [limits] with running, gpus, queued"),
        ("[limits]\ngpu = 3\n", "limits.gpu: unknown key; use running, gpus, queued"),
        ("[limits]\ngpus = 1.5\n", "limits.gpus: 1.5 is not a whole number"),
        ("[limits]\ngpus = -1\n", "limits.gpus: -1 is out of range, use 0 for no limit"),
        ("user_limits = 3\n", "user_limits: is not a table; write [user_limits.ann]"),
        ("[user_limits]\nann = 3\n", "user_limits.ann: is not a table"),
        ("base = \n", "is not TOML: Invalid value (at line 1, column 8)"),
        ("\udcff", "is not TOML"),
        ("#" * (1 << 20) + "#", "is larger than"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_key(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "ours.toml"
    file.write_text(text, errors="surrogateescape")
    with pytest.raises(BadPolicy) as caught:
        read_policy(str(file))
    assert str(caught.value).startswith(f"{file}: ")
    assert complaint in str(caught.value)


def test_neither_a_name_nor_a_file(tmp_path: Path) -> None:
    with pytest.raises(BadPolicy, match=r"^slurm: no such policy; use one of fcfs-strict, .* or a FILE\.toml"):
        read_policy("slurm")
    with pytest.raises(BadPolicy, match=r"none\.toml: cannot be read: No such file"):
        read_policy(str(tmp_path / "none.toml"))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(BadPolicy, match="cannot be read: Is a directory"):
        read_policy(str(tmp_path / "folder.toml"))
