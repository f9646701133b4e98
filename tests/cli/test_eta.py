"""`rota eta`: a sentence people understand, what would be sooner, and how such sentences did."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import pytest

from rota.cli.calibration import drawn, line
from rota.cli.prospect import bound, probably, sooner
from rota.cli.render import moment
from rota.client.model.calibration import calibration
from rota.client.model.run import Alternative, Eta, eta
from tests.cli.lab import Lab


def test_when_it_probably_starts_and_what_would_be_sooner(lab: Lab) -> None:
    lab.submit("-G", "6", "--estimate", "1h", "--", "sleep", "1000")
    waits = lab.submit("-G", "4", "--estimate", "10m", "-t", "20m", "--", "true")
    said = lab.out("eta", waits).splitlines()
    moment = r"([0-9-]+ )?[0-9]{2}:[0-9]{2}"
    assert re.fullmatch(rf"{waits}: probably in .+ \({moment}\), 9 of 10 times before {moment}", said[0]), said[0]
    assert said[1].startswith("  fair, from how long 1 run will take") or said[1].startswith("  good, from")
    assert "  with 2 GPUs: now" in said
    assert lab.json("eta", waits)["p50"] > 0
    assert float(lab.out("eta", "-q", waits)) > 1000
    assert f"{waits} queued" not in lab.out("explain", waits) and "resources:" in lab.out("explain", waits)


def test_who_asks_why_and_who_asks_when_hear_the_same_time(lab: Lab) -> None:
    """What is told moves on with the clock, so each text stands between two answers. The bound is told only where it is
    later than the guess: that goes by the ids of the runs, and by what was foretold before."""
    lab.wait_for(lab.submit("-G", "8", "-N", "2", "-t", "4h", "--estimate", "30m", "--", "sleep", "1000"), "running")
    lab.submit("-G", "8", "-N", "2", "-t", "4h", "--estimate", "30m", "--", "true")
    waits = lab.submit("-G", "8", "-N", "2", "-t", "4h", "--", "true")
    told = lab.json("eta", waits)
    assert told["p90"] > told["p50"]
    assert 7 * 3600 < told["latest"] - time.time() < 9 * 3600
    assert {name: lab.json("explain", waits)[name] for name in ("p50", "p90", "latest")}.keys() < told.keys()
    for words in ("explain", "eta", "show"):
        before = eta(lab.json("eta", waits))
        shown = lab.out(words, waits)
        around = (before, eta(lab.json("eta", waits)))
        assert any(f"9 of 10 times before {moment(found.p90)}" in shown for found in around), (words, shown)
        bounded = re.search(r"at the latest in [78] h .+ if everybody uses all of their time", shown) is not None
        assert bounded in [bound(found) != "" for found in around], (words, shown)


def test_nothing_is_sooner_by_more_than_the_wait_and_what_is_near_is_told_in_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    one = Alternative({}, "with 2 GPUs", now + 30, 1200.0)
    found = Eta({}, "r", p50=now + 1080.5, p90=now + 1200, alternatives=(one,))
    assert sooner(found, one) == "with 2 GPUs: up to 18 min sooner"
    assert sooner(found, replace(one, sooner_seconds=600.0)) == "with 2 GPUs: 10 min sooner"
    assert sooner(found, replace(one, sooner_seconds=None)).startswith("with 2 GPUs: in 30 s (")
    near = Eta({}, "r", p50=now + 110.5, p90=now + 115.0)
    at = [moment(each) for each in (near.p50, near.p90)]
    assert probably(near) == f"probably in 110 s ({at[0]}), 9 of 10 times before {at[1]}"
    assert all(each.count(":") == 2 or "-" in each for each in at), "in seconds, unless midnight is between"
    assert bound(near) == "" == bound(replace(near, latest=now + 150)), "no news"
    assert bound(replace(near, latest=now + 7200.5)).startswith("at the latest in 2 h 00 (")


def test_how_predictions_did(lab: Lab) -> None:
    shown = lab.out("eta", "--calibration")
    assert "predicted start" in shown
    assert lab.json("eta", "--calibration")["starts"][0]["horizon"] == "all"
    for words in (["eta"], ["eta", "0123456789ab", "--calibration"]):
        done = lab.rota(*words)
        assert done.returncode == 2 and b"RUN_ID, or --calibration" in done.stderr


def test_a_limit_is_suggested_beside_the_answer_not_in_it(lab: Lab) -> None:
    for _ in range(6):
        lab.wait_for(lab.submit("-G", "1", "--", "echo", "suggest-me"), "finished")
    done = lab.rota("submit", "-G", "1", "--", "echo", "suggest-me")
    assert b"95 % of your runs like this end by 1 min" in done.stderr
    assert done.stdout.count(b"\n") == 1
    assert lab.rota("submit", "-q", "-G", "1", "--", "echo", "suggest-me").stderr == b""


def test_the_picture_shows_where_the_share_is_and_where_it_should_be() -> None:
    assert line(0.5, 0.5).index("o") == 10
    assert line(0.25, 0.5) == ".....o....|........."
    assert (line(0.0, 0.9)[0], line(1.0, 0.9)[-1], line(None, 0.5)) == ("o", "o", "")
    row = {"horizon": "all", "count": 12, "by_p50": 0.5, "by_p90": 0.92, "error_s": 300.0}
    runs = [{"source": "all", "count": 3, "within": 0.8, "ratio": 0.5}]
    text = drawn(calibration({"pending": 2, "starts": [row], "runtimes": runs}))
    assert "12 predicted starts have come, 2 are still to come" in text
    assert "92%" in text and "5 min" in text and "0.50" in text
    assert "how to read it: " in text and "12 are few: wait for 20" in text
    assert "1 predicted start has come, 1 is still to come" in drawn(
        calibration({"pending": 1, "starts": [{**row, "count": 1}], "runtimes": []})
    )
    nothing = drawn(calibration({"pending": 0, "starts": [], "runtimes": []}))
    assert "nothing to judge yet: a prediction is made when a run has to wait" in nothing
