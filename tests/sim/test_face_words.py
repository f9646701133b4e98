"""What a simulation says in words, numbers and on its page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from rota.sim.compare import compare, difference, fidelity, summary, trust
from rota.sim.human import digits, percent, span
from rota.sim.measure import measure
from rota.sim.model import Job, Result, Segment
from rota.sim.picture.album import album, slug
from rota.sim.report import Page, html, people
from rota.sim.table import ONCE, figures, rows, verdict

HOSTILE = "</title></td><script>alert('x')</script><img src=x onerror=alert(1)>"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (4.24, "4.2 s"), (42, "42 s"), (120, "2 min"), (2220, "37 min"), (33_840, "9.4 h"), (100_000, "28 h"),
     (300_000, "3.5 d"), (10**9, "11,574 d"), (-2220, "-37 min"), (-0.04, "0 s"), (0.3, "0.30 s")],
)  # fmt: skip
def test_times_are_read_at_a_glance(seconds, text):
    assert span(seconds) == text


def test_numbers_are_as_exact_as_anybody_reads():
    assert [digits(n) for n in (0, 0.0683, 0.42, 1.0, 3.16, 37.4, 1204.6)] == [
        "0", "0.068", "0.42", "1", "3.2", "37", "1,205",
    ]  # fmt: skip
    assert [percent(n) for n in (0, 0.031, 0.5, 0.998, 1)] == ["0 %", "3.1 %", "50 %", "99.8 %", "100 %"]


def schedule(*waits: int, users: str = "", ids: tuple[str, ...] = ()) -> Result:
    """Jobs of ten minutes that came a minute apart and waited so long."""
    users = users or "a" * len(waits)
    jobs = tuple(
        Job(ids[n] if ids else f"j{n}", 60 * n, 600, 1, {"a": "ann", "b": "ben", "c": "cid"}[users[n]])
        for n in range(len(waits))
    )
    ends = tuple(job.submit_s + wait + job.duration_s for job, wait in zip(jobs, waits, strict=True))
    segments = tuple(Segment(n, 1, end - 600, end, (("node1", 1),)) for n, end in enumerate(ends))
    return Result(jobs, 8, tuple(sorted(segments, key=lambda s: s.end_s)), ends, (0,) * len(jobs), 60, (("node1", 8),))


def test_a_table_has_a_column_a_policy_and_leaves_out_what_nobody_can_say():
    auto, easy = (
        figures(name, [measure(schedule(*waits))]) for name, waits in (("auto", (0, 60)), ("easy", (0, 6000)))
    )
    cells = {row[0]: row[1:] for row in rows([auto, easy])}
    assert cells["mean wait"] == ["30 s", "50 min"]
    assert cells["longest wait"] == ["60 s", "100 min"] or cells["longest wait"] == ["60 s", "1.7 h"]
    assert cells["jobs that wait > 5 min"] == ["0 %", "50 %"]
    assert "8+ GPUs: 99 % wait at most" not in cells, "there was no such job"
    assert "longest wait / fair turn" not in cells, "nobody knows the turns"


def test_several_shakes_are_a_mean_and_a_deviation():
    one = figures("auto", [measure(schedule(0, 120)), measure(schedule(0, 240))])
    assert one["mean_wait_s"] == 90
    assert one.deviation["mean_wait_s"] == pytest.approx(42.43, abs=0.01)
    assert {row[0]: row[1] for row in rows([one])}["mean wait"] == "90 s (42 s)"


def test_the_words_say_what_the_table_says():
    made = [
        figures(name, [measure(schedule(*w))])
        for name, w in (("auto", (7, 7)), ("sjf", (14, 14)), ("easy", (100, 100)))
    ]
    first, others, few, once = verdict(made)
    assert first.startswith("auto lets jobs wait 0.07x as long as easy (7 s instead of 1.7 min on average)")
    assert others == "The mean wait of auto is 0.50x that of sjf."
    assert few == "Too few to mean much: p95 is made by the longest wait of 2 jobs. The mean says more."
    assert "--shakes 20" in once
    assert verdict(made[:1])[0].startswith("Under auto jobs wait 7 s on average")
    idle = figures("las", [measure(schedule(0, 0))])
    assert "Under las nobody waits" in verdict([made[0], idle])[0]


# -- who gains, who loses ---------------------------------------------------------------------------------------------
LIVE = schedule(3600, 7200, 0, 0, 600, users="aabbc")
WOULD = schedule(0, 600, 30, 900, 600, users="aabbc")


def test_who_would_have_waited_less_and_who_more():
    found = compare("auto", LIVE, WOULD)
    assert [person.user for person in found.people] == ["ann", "cid", "ben"]
    ann, cid, ben = found.people
    assert (ann.runs, ann.live_s, ann.would_s) == (2, 5400, 300)
    assert (ann.most.job.id, ann.most.less_s) == ("j1", 6600)
    assert (ben.most.job.id, ben.most.less_s) == ("j3", -900)
    assert cid.less_s == 0
    assert (found.less, found.more, found.runs) == (2, 1, 5)
    assert [one.job.id for one in found.gains] == ["j1", "j0"]
    assert [one.job.id for one in found.losses] == ["j3"], "half a minute is the same"
    said = summary(found)
    assert "2 runs would have waited less, 1 more, and 2 the same to within 60 s" in said
    assert "Of 3 people 1 would have waited less on average and 1 more" in said
    assert [difference(n) for n in (5100, -900, 59)] == ["85 min less", "15 min more", "the same"]


def test_one_run_of_one_person_is_told_of_as_one():
    said = summary(compare("auto", schedule(600), schedule(0)))
    assert "Under auto this 1 run would have waited 0 s on average; in truth it waited 10 min. 1 run would" in said
    assert "Of 1 person 1 would have waited less" in said


def test_which_rows_rest_on_too_few_jobs():
    assert verdict([figures("auto", [measure(schedule(*range(100)))])])[1:] == [ONCE], "five beyond p95 are enough"
    said = verdict([figures("auto", [measure(schedule(*range(99)))])])[1]
    assert said.startswith("Too few to mean much: p95 is made by the 5 longest waits of 99 jobs")
    wide = Result((Job("w", 0, 600, 8),), 8, (Segment(0, 1, 0, 600, (("node1", 8),)),), (600,), (0,), 60)
    assert (
        "the 99 % row by the longest wait of 1 job with 8 or more GPUs"
        in verdict([figures("auto", [measure(wide)])])[1]
    )


def test_at_most_ten_runs_are_named_from_each_end():
    count = 50
    found = compare("auto", schedule(*range(0, 100 * count, 100)), schedule(*range(100 * count, 0, -100)))
    assert len(found.gains) == len(found.losses) == 10
    assert [one.job.id for one in found.losses[:2]] == ["j0", "j1"]
    assert [one.job.id for one in found.gains[:2]] == ["j49", "j48"]


def test_how_far_to_believe_it():
    found = fidelity("live:priority", LIVE, WOULD)
    assert (found.live_s, found.simulated_s, found.middle_error_s) == (2280, 426, 900)
    said = trust(found)
    assert "simulated by the server's own policy (live:priority) the same runs wait 7.1 min on average" in said
    assert "in truth they waited 38 min (simulated / true: 0.19x)" in said and "within 15 min of the truth" in said
    assert "x)" not in trust(fidelity("live:auto", schedule(0), schedule(0))), "no ratio to nothing"


def test_a_past_that_is_told_badly_is_not_to_be_believed():
    plainly = "The simulation does not tell this past well"
    for true, simulated in ((100, 49), (100, 201), (0, 0), (0, 500)):
        found = fidelity("live:auto", schedule(true), schedule(simulated))
        assert not found.believable and plainly in trust(found) and "do not believe the differences" in trust(found)
    assert "(in truth nobody waited)" in trust(fidelity("live:auto", schedule(0), schedule(0)))
    for simulated in (50, 100, 200):
        found = fidelity("live:auto", schedule(100), schedule(simulated))
        assert found.believable and plainly not in trust(found)


def test_under_the_policy_that_the_server_runs_nobody_gains_or_loses():
    found = compare("auto", LIVE, WOULD, runs_already=True)
    assert (found.runs, found.live_s, found.would_s) == (5, 2280, 426)
    assert (found.people, found.gains, found.losses, found.less, found.more) == ((), (), (), 0, 0)
    assert "auto is what the server runs already" in summary(found) and "error of the simulation" in summary(found)


def test_schedules_of_other_jobs_are_no_comparison():
    with pytest.raises((AssertionError, ValueError)):
        compare("auto", LIVE, schedule(1, 2, 3))


# -- the page ---------------------------------------------------------------------------------------------------------
class Tags(HTMLParser):
    """Every tag that a browser would see, and whether they are closed as they were opened."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def page(live: Result, would: Result, name: str) -> str:
    one = figures(name, [measure(would)])
    happened = figures("what happened", [measure(live)])
    return html(
        Page(
            title=f"Simulated: {name}",
            facts=[name],
            figures=[one],
            pictures=album([one, happened], [(name, would), ("what happened", live)]),
            live=happened,
            comparisons=[compare(name, live, would)],
            fidelity=fidelity(name, live, would),
        )
    )


def test_a_page_needs_nothing_and_runs_nothing_whatever_jobs_and_people_are_called():
    ids = tuple(f"{HOSTILE}{n}" for n in range(5))
    live, would = (schedule(*r.waits, users="aabbc", ids=ids) for r in (LIVE, WOULD))
    made = page(live, would, HOSTILE)
    tags = Tags()
    tags.feed(made)
    assert tags.open == []
    assert not tags.seen & {"script", "img", "iframe", "link", "object", "embed", "a", "form"}
    assert not [name for name in tags.attributes if name.startswith("on") or name in ("href", "src")]
    assert "&lt;script&gt;" in made, "it is shown as it is"
    assert set(re.findall(r"https?://[^\"'<\s]+", made)) == {"http://www.w3.org/2000/svg"}


def test_a_page_has_the_words_the_table_and_the_pictures():
    made = page(LIVE, WOULD, "auto")
    for part in ("What auto would have changed", "mean wait", "How far to believe it", "fair turn", "85 min less"):
        assert part in made
    assert made.count("<svg ") == 5, "means, waits, utilisation, and a Gantt each"


def test_a_page_says_first_how_far_to_believe_it_and_last_what_it_does_not_know():
    own = compare("auto", LIVE, WOULD, runs_already=True)
    doubt = fidelity("live:auto", LIVE, WOULD)
    one = figures("auto", [measure(WOULD)])
    made = html(Page("Simulated", [], [one], [], comparisons=[own], fidelity=doubt, unknown=["runs <not> ended"]))
    assert made.index("does not tell this past well") < made.index("auto is what the server runs already")
    assert "would have changed" not in made and "ann" not in made
    assert "<h2>What it does not know</h2>" in made and "<li>runs &lt;not&gt; ended</li>" in made


def test_of_many_people_both_ends_are_shown():
    found = compare("auto", LIVE, WOULD)
    assert [row[0] for row in people(found, 2)] == ["ann", "ben"]
    assert [row[0] for row in people(found)] == ["ann", "cid", "ben"]


def test_a_policy_becomes_a_part_of_a_files_name():
    assert [slug(name) for name in ("auto", "live:priority", "../x y", "")] == [
        "auto",
        "live-priority",
        "x-y",
        "policy",
    ]
