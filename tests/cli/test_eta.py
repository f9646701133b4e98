"""`rota eta`: a sentence people understand, what would be sooner, and how such sentences did."""

from __future__ import annotations

import re

from rota.cli.calibration import drawn, line
from rota.client.model.calibration import calibration
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
    assert "nothing to judge yet" in drawn(calibration({"pending": 0, "starts": [], "runtimes": []}))
