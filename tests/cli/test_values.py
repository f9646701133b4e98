"""What people write for times, priorities and parameters; and how names of others are shown."""

from __future__ import annotations

import contextlib
import io

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.cli import render, table, values
from rota.core import times
from tests.cli.test_exits import call


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90), ("90s", 90), ("0.5", 0.5), ("30m", 1800), ("30min", 1800), ("2h", 7200), ("1d", 86400),
        ("12:00:00", 43200), ("30:00", 1800), ("1-12:00:00", 129600), ("1-12", 129600), ("1-12:30", 131400),
    ],
)  # fmt: skip
def test_times(text, seconds):
    assert times.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "soon", "-1", "nan", "inf", "1e9", "99999d", "1:2:3:4", "1-", "h", "٣"])
def test_what_is_no_time(text):
    with pytest.raises(ValueError, match="is not a time"):
        times.seconds(text)


@given(st.text(max_size=20))
def test_any_text_is_a_time_or_is_refused(text):
    with contextlib.suppress(ValueError):
        assert 0 < times.seconds(text) <= 10 * 365 * 86400


def test_priorities_by_word_and_number():
    kind = values.Priority()
    assert [kind.convert(word, None, None) for word in ("low", "NORMAL", "3", "critical")] == [1, 2, 3, 4]
    for word in ("", "0", "5", "urgent"):
        with pytest.raises(click.BadParameter):
            kind.convert(word, None, None)


def test_parameters_of_a_sweep():
    assert values.parameter("lr=0.1,1e-3") == ("lr", ["0.1", "1e-3"])
    assert values.parameter("seed=1..4") == ("seed", [1, 2, 3, 4])
    assert values.parameter("n=7,9..10,x") == ("n", [7, 9, 10, "x"])
    assert values.parameter("data=../a,..,1..x,v1..2") == ("data", ["../a", "..", "1..x", "v1..2"])
    for text in ("", "lr", "=1", "lr=", "n=5..1", "n=1..999999999"):
        with pytest.raises(click.BadParameter):
            values.parameter(text)


@pytest.mark.parametrize("text", ["lr=0.1..0.5", "lr=7,1..2.5", "lr=1e-3..1", "n=1..99999999999", "x=nan..inf"])
def test_a_range_that_is_none_is_no_value_either(text):
    with pytest.raises(click.BadParameter, match="a range is of whole numbers"):
        values.parameter(text)


@pytest.mark.parametrize("word", ["nan", "inf", "-inf", "1e999", "-1", "much"])
@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--mem", ["submit", "--mem={}", "--", "true"]),
        ("--gpu-memory", ["submit", "--gpu-memory={}", "--", "true"]),
        ("--days", ["history", "--days={}"]),
        ("--time", ["submit", "--time={}", "--", "true"]),
        ("--expires", ["token", "create", "--user", "ann", "--expires={}"]),
        ("--since", ["usage", "--since={}"]),
    ],
)
def test_what_is_no_amount_is_refused_by_the_name_of_the_option(option, words, word):
    code, out, err = call(*(part.format(word) for part in words))
    assert (code, out) == (2, "") and option in err, err


def test_one_parameter_twice_is_refused():
    code, _, err = call("sweep", "s", "--base", "echo", "-p", "a=1..3", "-p", "a=5")
    assert code == 2 and "'a' is given twice" in err


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (-5, "0.0 s"), (0.04, "0.0 s"), (9.94, "9.9 s"), (42, "42 s"), (110, "110 s"), (180, "3 min"),
     (7500, "2 h 05"), (300000, "3 d 11 h"), (1e12, "ages")],
)  # fmt: skip
def test_spans(seconds, shown):
    assert render.span(seconds) == shown


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_no_moment_breaks_a_table(at):
    assert render.clock(at)


def test_names_of_others_do_not_steer_the_terminal():
    shown = table.table(("NAME",), [["\x1b[2Jevil\r\n\u202eeman"]])
    assert shown == "NAME\n\ufffd[2Jevil\ufffd\ufffd\ufffdeman"
    assert "\x1b" not in table.facts([("name", "\x1b[31m")])


def test_columns_line_up_with_wide_characters():
    shown = table.table(("A", "N", "B"), [["日本", 7, "x"], ["ab", 123, "y"]], right=("N",))
    assert shown.splitlines() == ["A       N  B", "日本    7  x", "ab    123  y"]


def test_gpus_are_named_by_node():
    assert render.gpus(("node1:0", "node1:1", "node2:7")) == "node1:0,1 node2:7"
    assert render.gpus(()) == "-"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_on_a_terminal_and_not_with_no_color(monkeypatch):
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.delenv("NO_COLOR", raising=False)
    row = [["running", "n" * 100]]
    assert "\x1b[32mrunning" in table.table(("STATE", "NAME"), row)
    monkeypatch.setenv("NO_COLOR", "1")
    shown = table.table(("STATE", "NAME"), row)
    assert "\x1b" not in shown
    assert all(len(line) <= 40 for line in shown.splitlines()) and shown.endswith("…")
