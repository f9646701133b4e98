"""A trace is read whole or refused by line and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from rota.core.node import simulated_cluster
from rota.sim.cluster import read_cluster
from rota.sim.model import Job
from rota.sim.trace import BadTrace, check_fits, columns, read_trace

HEADER = "job_id,submit_time_s,duration_s,gpus"
FULL = HEADER + ",user,limit_s,priority,preemptible"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_least_a_trace_may_say(tmp_path: Path) -> None:
    path = written(tmp_path, f"{HEADER}\na,5,60,1\nb,2,0,8\n")
    assert read_trace(path) == [Job("b", 2, 0, 8), Job("a", 5, 60, 1)]  # by submit
    assert [job.line for job in read_trace(path)] == [3, 2]


def test_all_it_may_say_in_any_order_beside_columns_that_are_not_ours(tmp_path: Path) -> None:
    text = (
        "\ufeffvc,gpus,preemptible,priority,limit_s,user,duration_s,submit_time_s,job_id\r\nx,4,0,3,3600,ann,90,7,a\r\n"
    )
    assert read_trace(written(tmp_path, text)) == [Job("a", 7, 90, 4, "ann", 3600, 3, preemptible=False)]


def test_what_a_line_leaves_empty_is_not_said(tmp_path: Path) -> None:
    path = written(tmp_path, f"{FULL}\na,0,1,1,,,,\n\nb,0,1,1,,,,1\n")
    assert read_trace(path, preemptible=False) == [
        Job("a", 0, 1, 1, preemptible=False),
        Job("b", 0, 1, 1, preemptible=True),
    ]


@pytest.mark.parametrize(("said", "meant"), [(True, True), (False, False), (None, True)])
def test_one_word_for_all_where_there_is_no_column(tmp_path: Path, said: bool | None, meant: bool) -> None:
    (job,) = read_trace(written(tmp_path, f"{HEADER}\na,0,1,1\n"), preemptible=said)
    assert job.preemptible is meant


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty; the first line names the columns"),
        ("\n\n", "is empty"),
        (HEADER + "\n", "has a header and no jobs"),
        ("job_id,gpus\na,1\n", "line 1: submit_time_s, duration_s: no such column"),
        (f"{HEADER},gpus\n", "line 1: gpus: the column is there twice"),
        (f"{HEADER}\na,0,1\n", "line 2: has 3 fields, the header names 4"),
        (f"{HEADER}\na,0,1,1,1\n", "line 2: has 5 fields, the header names 4"),
        (f"{HEADER}\na,0,1,1\nb,-5,1,1\n", "line 3: submit_time_s: '-5' is wrong, use a whole number, 0 to"),
        (f"{HEADER}\na,0,-1,1\n", "line 2: duration_s: '-1' is wrong"),
        (f"{HEADER}\na,0,1.5,1\n", "line 2: duration_s: '1.5' is wrong"),
        (f"{HEADER}\na,nan,1,1\n", "line 2: submit_time_s: 'nan' is wrong"),
        (f"{HEADER}\na,0,1e3,1\n", "line 2: duration_s: '1e3' is wrong"),
        (f"{HEADER}\na,0,1_0,1\n", "line 2: duration_s: '1_0' is wrong"),
        (f"{HEADER}\na,0,٣,1\n", "line 2: duration_s: '٣' is wrong"),
        (f"{HEADER}\na,0,{'9' * 5000},1\n", "line 2: duration_s: '9999"),
        (f"{HEADER}\na,0,1,\n", "line 2: gpus: is missing"),
        (f"{HEADER}\n,0,1,1\n", "line 2: job_id: is missing"),
        (f"{HEADER}\na,0,1,1\n\nb,0,1,1\na,1,1,1\n", "line 5: job_id: 'a' is also in line 2"),
        (f"{FULL}\na,0,1,1,ann,0,2,1\n", "line 2: limit_s: '0' is wrong, use a whole number, 1 to"),
        (f"{FULL}\na,0,1,1,ann,5,5,1\n", "line 2: priority: '5' is wrong, use a whole number, 1 to 4"),
        (f"{FULL}\na,0,1,1,ann,5,high,1\n", "line 2: priority: 'high' is wrong"),
        (f"{FULL}\na,0,1,1,ann,5,2,yes\n", "line 2: preemptible: 'yes' is wrong, use a whole number, 0 to 1"),
        (f"{FULL}\na,0,1,1,an\x1b[31mn,5,2,1\n", "line 2: user: 'an\\x1b[31mn' is no name"),
        (f'{HEADER}\n"a"b,0,1,1\n', "line 2: is not CSV"),
        (f"{HEADER}\n{'a' * 200_000},0,1,1\n", "line 2: is not CSV: field larger than"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(BadTrace) as caught:
        read_trace(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert complaint in message
    assert len(message) < 400


def test_all_bad_lines_are_named_at_once(tmp_path: Path) -> None:
    """Whoever mends a trace should have to look only once."""
    path = written(tmp_path, f"{HEADER}\na,0,1,1\nb,x,1,1\na,0,1,1\nc,0,1\nd,0,1,1\n")
    with pytest.raises(BadTrace) as caught:
        read_trace(path)
    head, *lines = str(caught.value).splitlines()
    assert head == f"{path}: 3 lines are wrong"
    assert [line.split(":")[0].strip() for line in lines] == ["line 3", "line 4", "line 5"]
    with pytest.raises(BadTrace) as caught:
        read_trace(written(tmp_path, f"{HEADER}\n" + "a,0,1\n" * 12 + '"a"b,0,1,1\n'))
    lines = str(caught.value).splitlines()
    assert (len(lines), lines[-1]) == (12, "  and 3 more"), "what is no CSV is one of them"
    jobs = read_trace(written(tmp_path, f"{HEADER}\na,0,1,9\nb,0,1,1\nc,0,1,2\n"))
    with pytest.raises(BadTrace, match=r"2 lines are wrong\n  line 2: .*\n  line 4: .* of 1 node with 1 GPU could"):
        check_fits(jobs, simulated_cluster(1, 1), "jobs.csv")


@pytest.mark.parametrize("header", [HEADER, FULL, "\n" + FULL])
def test_which_columns_are_used(tmp_path: Path, header: str) -> None:
    used, unused = columns(written(tmp_path, f"{header}, prority,\n"))
    assert (used, unused) == (header.strip().split(","), ["prority", ""])


def test_files_that_are_no_text_or_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"none\.csv: cannot be read: No such file"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(BadTrace, match="cannot be read: Is a directory"):
        read_trace(tmp_path)
    (tmp_path / "bytes.csv").write_bytes(b"job_id\xff\xfe\n")
    with pytest.raises(BadTrace, match="is not UTF-8 text"):
        read_trace(tmp_path / "bytes.csv")


def test_there_is_a_most_of_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rota.sim.trace.MAX_JOBS", 2)
    path = written(tmp_path, f"{HEADER}\na,0,1,1\nb,0,1,1\nc,0,1,1\n")
    with pytest.raises(BadTrace, match="line 4: more than 2 jobs"):
        read_trace(path)


def test_a_job_the_cluster_could_never_place_is_named(tmp_path: Path) -> None:
    jobs = read_trace(written(tmp_path, f"{HEADER}\na,0,1,16\nb,0,1,17\n"))
    with pytest.raises(BadTrace, match=r"^jobs\.csv: line 3: gpus: job b asks for 17, and this cluster of 2 nodes"):
        check_fits(jobs, simulated_cluster(2, 8), "jobs.csv")
    check_fits(jobs, simulated_cluster(3, 8))


def test_enough_gpus_in_all_may_still_be_too_few_together(tmp_path: Path) -> None:
    """12 GPUs are a whole node of 8 and half of another; three nodes of 4 beside one of 8 do not hold 8 + 4 + 4."""
    file = tmp_path / "cluster.toml"
    file.write_text("[[node]]\ngpus = 8\n[[node]]\ncount = 3\ngpus = 4\n")
    nodes = read_cluster(str(file))
    check_fits([Job("a", 0, 1, 12)], nodes)
    with pytest.raises(BadTrace, match=r"^gpus: job b asks for 16"):
        check_fits([Job("b", 0, 1, 16)], nodes)
