"""What stands behind Slurm's options: times, sizes, GPUs, arrays, dependencies, file names, environments."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from rota.cli.slurm import clock, values
from rota.cli.slurm.batchopts import TABLE
from rota.cli.slurm.jobs import compressed
from rota.cli.slurm.options import UsageError, parse
from rota.cli.slurm.output import fill, wrap
from rota.cli.slurm.request import environment, shape, tags

NOW = time.mktime((2026, 11, 5, 15, 30, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("1:30", 90),
        ("1:00:00", 3600),
        ("2-0", 172800),
        ("1-2:3", 86400 + 7200 + 180),
        ("1-02:03:04", 86400 + 7200 + 180 + 4),
        ("UNLIMITED", None),
        ("infinite", None),
        ("0", None),
    ],
)
def test_time_limits(text: str, seconds: float | None) -> None:
    assert values.time_limit_s(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5", "1:2:3:4", "1-2-3", "0:0", "1.5", "１", "9" * 20])
def test_no_time_limits(text: str) -> None:
    with pytest.raises(UsageError, match="--time: "):
        values.time_limit_s(text)


@pytest.mark.parametrize(
    ("text", "gb"), [("16G", 16), ("16GB", 16), ("1024", 1), ("512M", 0.5), ("2T", 2048), ("1048576K", 1), ("0", 0)]
)
def test_memory(text: str, gb: float) -> None:
    assert values.memory_gb("mem", text) == gb


@pytest.mark.parametrize("text", ["", "lots", "-1G", "1E", "G"])
def test_no_memory(text: str) -> None:
    with pytest.raises(UsageError, match="--mem: "):
        values.memory_gb("mem", text)


@pytest.mark.parametrize(
    ("text", "count", "kind"),
    [("gpu:2", 2, ""), ("gpu", 1, ""), ("gpu:a100:4", 4, "a100"), ("gpu:a100", 1, "a100"), ("gres/gpu:3", 3, "")],
)
def test_gres(text: str, count: int, kind: str) -> None:
    assert values.gres(text) == values.Gpus(count, kind)


def test_gres_none() -> None:
    assert values.gres("none") is None


@pytest.mark.parametrize("text", ["fpga:1", "gpu:2,gpu:1", "gpu:x:y", "gpu:-1", "gpu:a100:"])
def test_no_gres(text: str) -> None:
    with pytest.raises(UsageError, match="--gres: "):
        values.gres(text)


@pytest.mark.parametrize(
    ("text", "indices", "cap"),
    [
        ("0-3", (0, 1, 2, 3), 0),
        ("0-9%2", tuple(range(10)), 2),
        ("1,3,5", (1, 3, 5), 0),
        ("0-20:5", (0, 5, 10, 15, 20), 0),
        ("5,1-3,2%7", (1, 2, 3, 5), 7),
        ("7", (7,), 0),
    ],
)
def test_arrays(text: str, indices: tuple[int, ...], cap: int) -> None:
    assert values.array(text) == values.Array(indices, cap)


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "0-5:0", "1%0", "1%", "0-2000", "5000000", "1,,2", "-1"])
def test_no_arrays(text: str) -> None:
    with pytest.raises(UsageError, match="--array: "):
        values.array(text)


def test_dependencies() -> None:
    a, b, c = "a" * 12, "b" * 12, "c" * 12
    assert values.dependencies(f"afterok:{a}:{b},afterany:{c}_7,afternotok:{a},after:{b}") == (
        values.Wanted(a, "succeeded"),
        values.Wanted(b, "succeeded"),
        values.Wanted(f"{c}_7", "ended"),
        values.Wanted(a, "failed"),
        values.Wanted(b, "started"),
    )


@pytest.mark.parametrize("text", ["", "afterok", "afterok:", "afterok:17", "singleton", "never:aaaaaaaaaaaa", "a?b"])
def test_no_dependencies(text: str) -> None:
    with pytest.raises(UsageError, match="--dependency: "):
        values.dependencies(text)


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("now", 0),
        ("now-2days", 172800),
        ("now-1hour", 3600),
        ("now-90", 90),
        ("today", 15.5 * 3600),
        ("midnight", 15.5 * 3600),
        ("noon", 3.5 * 3600),
        ("2026-11-05T15:00", 1800),
        ("2026-11-05T15:29:59", 1),
        ("14:30", 3600),
        ("2026-11-04", (24 + 15.5) * 3600),
        ("110526", 15.5 * 3600),
        ("11/05/26", 15.5 * 3600),
        ("1104", (24 + 15.5) * 3600),
    ],
)
def test_moments(text: str, ago: float) -> None:
    assert NOW - values.moment("starttime", text, NOW) == ago


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "25:00", "now-2fortnights"])
def test_no_moments(text: str) -> None:
    with pytest.raises(UsageError, match="--starttime: "):
        values.moment("starttime", text, NOW)


def test_durations_as_slurm_writes_them() -> None:
    assert [clock.duration(s) for s in (0, 59, 61, 3600, 90061)] == ["0:00", "0:59", "1:01", "1:00:00", "1-01:01:01"]
    assert clock.duration(61, always_hours=True) == "00:01:01"
    assert clock.limit(None) == "UNLIMITED"
    assert clock.stamp(NOW) == "2026-11-05T15:30:00"
    assert clock.stamp(None) == "N/A"


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["node1", "node2", "node3", "node7"], "node[1-3,7]"),
        (["node1"], "node1"),
        (["gpu08", "gpu09", "gpu10"], "gpu[08-09],gpu10"),
        (["head", "n2", "n1"], "head,n[1-2]"),
        ([], ""),
    ],
)
def test_lists_of_hosts(names: list[str], text: str) -> None:
    assert compressed(names) == text


# -- what a submit becomes ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("", {"gpu_count": 0}),
        ("-G 2", {"gpu_count": 2}),
        ("--gpus=a100:2", {"gpu_count": 2, "gpu_type": "a100"}),
        ("--gres=gpu:4 -N 2", {"gpu_count": 8, "nodes": 2}),
        ("--gpus-per-node=4 -N2", {"gpu_count": 8, "nodes": 2}),
        ("--gpus-per-task=1 -n 4", {"gpu_count": 4, "cpus": 4}),
        ("-G 8 -N 2-4", {"gpu_count": 8, "nodes": 2}),
        ("-n 4 -c 8", {"gpu_count": 0, "cpus": 32}),
        ("-N 2 -n 4 -c 8", {"gpu_count": 0, "nodes": 2, "cpus": 16}),
        ("--ntasks-per-node=2 -N 3", {"gpu_count": 0, "nodes": 3, "cpus": 2}),
        ("--mem=16G", {"gpu_count": 0, "memory_gb": 16}),
        ("--mem-per-cpu=2G -c 4", {"gpu_count": 0, "memory_gb": 8, "cpus": 4}),
        ("--mem-per-gpu=20G -G 2", {"gpu_count": 2, "memory_gb": 40}),
        ("-t 1-0", {"gpu_count": 0, "time_limit_seconds": 86400}),
        ("--no-requeue", {"gpu_count": 0, "max_retries": 0}),
        ("-G 2 --gres=gpu:a100:2", {"gpu_count": 2, "gpu_type": "a100"}),
    ],
)
def test_shapes(line: str, fields: dict) -> None:
    assert shape(parse(line.split(), TABLE)) == fields


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-G 2 --gres=gpu:3", "do not agree"),
        ("-G a100:2 --gres=gpu:h100:2", "one type"),
        ("-G 3 -N 2", "evenly"),
        ("-G x:y", "--gpus"),
        ("-G 1,2", "several types"),
        ("-N 0", "--nodes"),
        ("-N 4-2", "upwards"),
        ("-c 0", "--cpus-per-task"),
        ("--mem=1G --mem-per-gpu=1G", "mutually exclusive"),
    ],
)
def test_no_shapes(line: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        shape(parse(line.split(), TABLE))


def test_the_environment_of_a_submit() -> None:
    mine = {"PATH": "/bin", "SECRET": "s", "SLURM_JOB_ID": "outer", "ROTA_TOKEN": "t", "SHLVL": "2", "bad-name": "x"}
    made = environment(parse(["-c2", "-p", "gpu"], TABLE), mine, "/here", {"gpu_count": 3})
    assert made == {
        "PATH": "/bin",
        "SECRET": "s",
        "SLURM_SUBMIT_DIR": "/here",
        "SLURM_NTASKS": "1",
        "SLURM_NPROCS": "1",
        "SLURM_CPUS_PER_TASK": "2",
        "SLURM_JOB_PARTITION": "gpu",
        "SLURM_GPUS": "3",
    }
    for words in (["--export=a-b=1"], ["--export=ROTA_TOKEN"]):
        with pytest.raises(UsageError, match="--export: "):
            environment(parse(words, TABLE), mine, "/here", {})
    assert tags(parse(["-p", "gpu", "-A", "lab"], TABLE)) == ["partition=gpu", "account=lab"]


# -- output files -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("out-%j.txt", "out-%j.txt"),
        ("%x-%u-%a.log", "name-ann-7.log"),
        ("%A_%3a", "abc_007"),
        ("%5j", "%j"),
        ("100%%", "100%%"),
        ("%q", "%%q"),
        ("a\\%j", "a%%j"),
        ("plain", "plain"),
        ("", ""),
    ],
)
def test_what_is_known_is_filled_in(pattern: str, text: str) -> None:
    assert fill(pattern, {"x": "name", "u": "ann", "a": "7", "A": "abc"}) == text


ENV = {"ROTA_JOB_ID": "j1", "ROTA_NODE": "node1", "ROTA_NODE_RANK": "0", "PATH": "/usr/bin:/bin"}


def started(where: Path, argv: tuple[str, ...], **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=where, env={**ENV, **env}, capture_output=True, text=True, timeout=60, check=False)


def test_no_file_no_wrapper() -> None:
    assert wrap(["echo"], "", "", "", append=False) == ("echo",)


def test_output_goes_where_slurm_would_put_it(tmp_path: Path) -> None:
    argv = wrap(["sh", "-c", "echo out; echo err >&2; exit 4"], "", "o %j/%N%%.txt", "", append=False)
    (tmp_path / "o j1").mkdir()
    ended = started(tmp_path, argv)
    assert (ended.returncode, ended.stdout) == (4, "output goes to o j1/node1%.txt\n")
    assert (tmp_path / "o j1" / "node1%.txt").read_text() == "out\nerr\n"


def test_errors_and_input_have_files_too(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("given\n")
    argv = wrap(["sh", "-c", "cat; echo err >&2"], "in", "out", "err", append=False)
    assert started(tmp_path, argv).returncode == 0
    assert (tmp_path / "out").read_text() == "given\n"
    assert (tmp_path / "err").read_text() == "err\n"


def test_the_same_file_is_opened_once(tmp_path: Path) -> None:
    argv = wrap(["sh", "-c", "echo 1; echo 2 >&2; echo 3"], "", "both", "both", append=False)
    started(tmp_path, argv)
    assert (tmp_path / "both").read_text() == "1\n2\n3\n"


def test_a_second_attempt_does_not_wipe_the_first_ones_output(tmp_path: Path) -> None:
    argv = wrap(["echo", "x"], "", "out", "", append=False)
    for attempt in ("1", "2", "3"):
        started(tmp_path, argv, ROTA_ATTEMPT=attempt)
    assert (tmp_path / "out").read_text() == "x\n" * 3
    started(tmp_path, argv, ROTA_ATTEMPT="1")
    assert (tmp_path / "out").read_text() == "x\n"


def test_no_node_wipes_what_another_has_written(tmp_path: Path) -> None:
    argv = wrap(["sh", "-c", "echo $SLURM_NODEID; echo $SLURM_NODEID >&2"], "", "out", "err", append=False)
    for rank in ("0", "1"):
        started(tmp_path, argv, SLURM_NNODES="2", SLURM_NODEID=rank)
    assert (tmp_path / "out").read_text() == (tmp_path / "err").read_text() == "0\n1\n"


def test_a_file_that_cannot_be_opened_fails_the_job(tmp_path: Path) -> None:
    ended = started(tmp_path, wrap(["echo", "x"], "", "no/such/dir", "", append=False))
    assert ended.returncode != 0
    assert "no/such/dir" in ended.stderr


@pytest.mark.parametrize("evil", ["$(touch pwned)", "`touch pwned`", "; touch pwned;", "a'b\"c", "-n"])
def test_names_and_words_are_never_shell(tmp_path: Path, evil: str) -> None:
    ended = started(tmp_path, wrap(["printf", "%s|", evil, "two words"], "", f"{evil} out", "", append=False))
    assert ended.returncode == 0
    assert (tmp_path / f"{evil} out").read_text() == f"{evil}|two words|"
    assert not (tmp_path / "pwned").exists()
