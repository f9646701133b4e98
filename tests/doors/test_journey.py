"""The journey: a diary made of what happened to runs and of what people and agents add to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.app.house import until
from tests.doors.people import ANN, BEN, MakeServer, Person, people
from tests.doors.server import Server

EVENT = {"id", "kind", "actor", "session_id", "run_id", "note", "metadata", "timestamp"}


def ended(server: Server, command: str, session: str) -> str:
    body = {"name": f"run {command}", "command": command, "chat_session_id": session}
    run_id: str = server.post("/runs", body).ok()["id"]
    server.post(f"/runs/{run_id}/start").ok()
    until(lambda: server.get(f"/runs/{run_id}").ok()["status"] in ("finished", "failed"), "it has ended")
    return run_id


def test_what_happened_to_runs(server: Server) -> None:
    good, bad = ended(server, "sleep 0.3", "chat-1"), ended(server, "sleep 0.3; false", "chat-2")
    stopped = server.post("/runs", {"name": "s", "command": "true"}).ok()["id"]
    server.post(f"/runs/{stopped}/stop").ok()
    loop = server.get("/journey/loop").ok()
    assert set(loop) == {"events", "recommendations", "decisions", "summary"}
    events = loop["events"]
    assert all(set(event) == EVENT and re.fullmatch(r"jevt_[0-9a-f]{12}", event["id"]) for event in events)
    assert len({event["id"] for event in events}) == len(events)
    assert [event["timestamp"] for event in events] == sorted((e["timestamp"] for e in events), reverse=True)

    def kinds(query: str) -> list[str]:
        return [event["kind"] for event in server.get(f"/journey/loop?{query}").ok()["events"]][::-1]

    assert kinds(f"run_id={good}") == ["run_created", "run_queued", "run_launched", "run_running", "run_finished"]
    assert kinds("session_id=chat-2") == ["run_created", "run_queued", "run_launched", "run_running", "run_failed"]
    assert kinds(f"run_id={stopped}") == ["run_created", "run_stopped"]
    assert kinds(f"run_id={good}&session_id=chat-2") == []
    failed = server.get(f"/journey/loop?run_id={bad}&limit=1").ok()["events"]
    assert [(event["kind"], event["metadata"]["exit_code"]) for event in failed] == [("run_failed", 1)]
    assert (failed[0]["session_id"], failed[0]["note"]) == ("chat-2", "run sleep 0.3; false")
    assert loop["summary"]["events"] == len(events)
    assert kinds("run_id=%00") == kinds("session_id=nobody") == []


def test_what_is_added(server: Server) -> None:
    noted = server.post("/journey/events", {"kind": "idea", "note": "warm up", "session_id": "s1"}).ok()
    assert set(noted) >= EVENT
    assert (noted["actor"], noted["metadata"], noted["run_id"]) == ("anonymous", {}, None)
    asked = {"title": "try 0.01", "action": "start a run", "session_id": "s1", "confidence": 0.5, "priority": "high"}
    advice = server.post("/journey/recommendations", asked).ok()
    assert re.fullmatch(r"jrec_[0-9a-f]{12}", advice["id"])
    assert (advice["status"], advice["responded_at"]) == ("pending", None)
    path = f"/journey/recommendations/{advice['id']}/respond"
    assert server.post(path, {"status": "maybe"}).status == 400
    assert server.post(f"{path}?dry_run=true", {"status": "rejected"}).ok()["status"] == "rejected"
    accepted = server.post(path, {"status": "Accepted", "user_note": "fine"}).ok()
    assert (accepted["status"], accepted["user_note"], accepted["title"]) == ("accepted", "fine", "try 0.01")
    decision = server.post("/journey/decisions", {"title": "go", "recommendation_id": advice["id"], "run_id": "x"}).ok()
    assert (decision["id"][:5], decision["status"]) == ("jdec_", "recorded")
    assert server.post("/journey/recommendations/jrec_000000000000/respond", {"status": "accepted"}).status == 404

    loop = server.get("/journey/loop").ok()
    assert [event["kind"] for event in loop["events"]] == [
        "decision_recorded",
        "user_accepted_recommendation",
        "agent_recommendation_issued",
        "idea",
    ]
    assert loop["events"][-1]["id"] == noted["id"]
    assert loop["recommendations"] == [accepted]
    assert loop["decisions"] == [decision]
    assert loop["summary"] == {
        "events": 4,
        "recommendations": 1,
        "decisions": 1,
        "accepted_recommendations": 1,
        "executed_recommendations": 0,
        "rejected_recommendations": 0,
        "acceptance_rate": 1.0,
    }
    only = server.get("/journey/loop?session_id=s1").ok()
    assert (len(only["recommendations"]), len(only["decisions"])) == (1, 0)
    key = ["Idempotency-Key: k"]
    first = server.post("/journey/decisions", {"title": "once"}, headers=key).ok()
    assert server.post("/journey/decisions", {"title": "once"}, headers=key).ok() == first


def test_advice_answers_and_decisions_are_events_too(server: Server) -> None:
    run = server.post("/runs", {"name": "a", "command": "true"}).ok()["id"]
    where = {"run_id": run, "session_id": "s1"}
    assert server.get("/journey/loop").ok()["summary"]["acceptance_rate"] == 0.0
    asked = {**where, "title": "try 0.01", "priority": "high", "source": "llm"}
    advice = server.post("/journey/recommendations", asked).ok()
    words = ("rejected", "modified", "dismissed", "accepted", "executed")
    for word in words:
        server.post(f"/journey/recommendations/{advice['id']}/respond", {"status": word, "user_note": "n"}).ok()
    decision = server.post("/journey/decisions", {**where, "title": "go", "recommendation_id": advice["id"]}).ok()
    other = server.post("/journey/recommendations", {"title": "elsewhere", "run_id": "x"}).ok()

    loop = server.get(f"/journey/loop?run_id={run}").ok()
    events = [event for event in loop["events"] if not event["kind"].startswith("run_")][::-1]
    assert [(event["kind"], event["actor"]) for event in events] == [
        ("agent_recommendation_issued", "agent"),
        ("user_rejected_recommendation", "human"),
        ("user_modified_recommendation", "human"),
        ("recommendation_dismissed", "human"),
        ("user_accepted_recommendation", "human"),
        ("recommendation_executed", "human"),
        ("decision_recorded", "human"),
    ]
    assert [event["metadata"] for event in events[1:6]] == [{"status": word} for word in words]
    assert events[0]["metadata"] == {"priority": "high", "source": "llm"}
    assert events[6]["metadata"] == {"status": "recorded"}
    assert {event["note"] for event in events[:6]} == {"try 0.01"}
    assert {event["recommendation_id"] for event in events} == {advice["id"]}
    assert events[6]["decision_id"] == decision["id"]
    assert events[0]["timestamp"] == advice["created_at"]
    for event in events:
        assert set(event) >= EVENT
        assert re.fullmatch(r"jevt_[0-9a-f]{12}", event["id"])
        assert (event["run_id"], event["session_id"]) == (run, "s1")
    everything = server.get("/journey/loop").ok()["events"]
    assert len({event["id"] for event in everything}) == len(everything)
    assert loop["events"] == server.get(f"/journey/loop?run_id={run}").ok()["events"], "an event keeps its id"
    assert set(loop["summary"]) == {
        *("events", "recommendations", "decisions", "accepted_recommendations", "executed_recommendations"),
        *("rejected_recommendations", "acceptance_rate"),
    }
    assert (loop["summary"]["events"], loop["summary"]["executed_recommendations"]) == (len(loop["events"]), 1)

    listed = server.get(f"/journey/recommendations?run_id={run}").ok()
    assert [(one["id"], one["status"]) for one in listed] == [(advice["id"], "executed")]
    assert {one["id"] for one in server.get("/journey/recommendations").ok()} == {advice["id"], other["id"]}
    assert [one["id"] for one in server.get("/journey/recommendations?session_id=s1").ok()] == [advice["id"]]
    page = server.get("/journey/recommendations?limit=1")
    rest = server.get(f"/journey/recommendations?limit=1&cursor={page.headers['x-next-cursor']}")
    assert {one["id"] for one in [*page.ok(), *rest.ok()]} == {advice["id"], other["id"]}


def test_a_note_belongs_to_who_wrote_it(make_server: MakeServer) -> None:
    server = make_server()
    who = people(server, boss="admin", **{ANN: "user", BEN: "user"}, watcher="viewer")
    advice = who[ANN].post("/journey/recommendations", {"title": "t"}).ok()["id"]
    path = f"/journey/recommendations/{advice}/respond"
    assert who[BEN].post(path, {"status": "accepted"}).status == 403
    assert who["watcher"].post("/journey/events", {"kind": "k"}).status == 403
    assert who["boss"].post(path, {"status": "accepted"}).ok()["status"] == "accepted"
    assert len(who[BEN].get("/journey/loop").ok()["recommendations"]) == 1, "a lab reads along"


@pytest.fixture(scope="module")
def answering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Person]]:
    with Server(tmp_path_factory.mktemp("journey")) as server:
        yield people(server, boss="admin", **{ANN: "user", BEN: "user"}, bot="agent")


class TestWhoSaidIt:
    """The journey is read as what people have approved: an agent must not write that for them."""

    def test_an_agent_does_not_approve_its_own_advice(self, make_server: MakeServer) -> None:
        who = people(make_server(), boss="admin", **{ANN: "user"}, bot="agent", other="agent")
        advice = who["bot"].post("/journey/recommendations", {"title": "more GPUs"}).ok()
        assert (advice["by"], advice["user"]) == ("bot", ANN)
        path = f"/journey/recommendations/{advice['id']}/respond"
        for word in ("accepted", "rejected", "modified"):
            refused = who["bot"].post(path, {"status": word, "user_note": "ann approves"})
            assert (refused.status, "for a person to say" in refused.json["detail"]) == (403, True), refused.body
        assert who["other"].post(path, {"status": "dismissed"}).status == 403, "of its own only"
        notes = {"user_note": "I approve. Ann", "modified_action": "use 100"}
        done = who["bot"].post(path, {"status": "executed", **notes}).ok()
        assert (done["status"], done["user_note"], done["modified_action"]) == ("executed", None, None)
        assert who[ANN].post(path, {"status": "accepted"}).ok()["by"] == "bot", "who wrote it, not who answered"
        loop = who[ANN].get("/journey/loop").ok()
        assert [(event["kind"], event["actor"], event["by"]) for event in loop["events"]][::-1] == [
            ("agent_recommendation_issued", "agent", "bot"),
            ("recommendation_executed", "agent", "bot"),
            ("user_accepted_recommendation", "human", ANN),
        ]
        assert [one["by"] for one in loop["recommendations"][0]["responses"]] == ["bot", ANN]

    def test_a_persons_answer_stays(self, make_server: MakeServer) -> None:
        who = people(make_server(), boss="admin", **{ANN: "user"}, bot="agent")

        def advice() -> str:
            made = who["bot"].post("/journey/recommendations", {"title": "more GPUs"}).ok()
            return f"/journey/recommendations/{made['id']}/respond"

        def refused(name: str, path: str, **said: str) -> str:
            answer = who[name].post(path, said)
            assert answer.status == 409, answer.body
            return str(answer.json["detail"])

        path = advice()
        who[ANN].post(path, {"status": "rejected", "user_note": "too dear"}).ok()
        for word in ("executed", "dismissed"):
            assert f"{ANN} has answered this with 'rejected'; an agent" in refused("bot", path, status=word)
            refused("bot", path, status=word, seen="rejected")
        assert "send it again with `seen`: 'rejected'" in refused("boss", path, status="accepted")
        refused("boss", path, status="rejected", user_note="mine")
        changed = who["boss"].post(path, {"status": "accepted", "seen": "rejected"}).ok()
        assert [one["status"] for one in changed["responses"]] == ["rejected", "accepted"]
        refused(ANN, path, status="rejected")

        path = advice()
        said = {"status": "modified", "user_note": "half", "modified_action": "use 4"}
        who[ANN].post(path, said).ok()
        assert f"{ANN} has answered this with 'modified'" in refused("bot", path, status="dismissed")
        answers = [who["bot"].post(path, {**said, "status": "executed", "user_note": "all"}) for _ in range(60)]
        done = answers[-1].ok()  # said more often than answers are kept
        assert (done["status"], done["user_note"], done["modified_action"]) == ("executed", "half", "use 4")
        assert [(one["status"], one["by"]) for one in done["responses"]] == [("modified", ANN), ("executed", "bot")]
        refused("bot", path, status="dismissed")
        assert "with `seen`: 'executed'" in refused("boss", path, **said), "it is executed by now"
        assert who["boss"].post(path, {**said, "seen": "executed"}).ok()["status"] == "modified"
        assert who["boss"].post(path, {"status": "rejected"}).ok()["user_note"] is None

    def test_a_person_who_answers_otherwise_with_the_same_word_leaves_another_event(
        self, answering: dict[str, Person]
    ) -> None:
        made = answering[ANN].post("/journey/recommendations", {"title": "more GPUs", "session_id": "twice"}).ok()
        path = f"/journey/recommendations/{made['id']}/respond"
        for action in ("use 4", "use 2"):
            answering[ANN].post(path, {"status": "modified", "modified_action": action}).ok()
        answer = answering[ANN].post(path, {"status": "modified", "modified_action": "use 2"}).ok()
        assert (answer["modified_action"], len(answer["responses"])) == ("use 2", 2)
        events = answering[ANN].get("/journey/loop?session_id=twice").ok()["events"]
        assert [one["kind"] for one in events].count("user_modified_recommendation") == 2

    @pytest.mark.parametrize(
        "kind",
        [
            *("user_accepted_recommendation", "User_said", "run_finished", "recommendation_executed"),
            *(
                "recommendation-accepted",
                "run finished",
                "\uff52ecommendation_accepted",
                "us\u200ber_said",
                "us\u3164er_said",
                "\uffa0run_failed",
                "ru\ufff0n_finished",
                "_run_failed",
            ),
            *("decision_recorded", "agent_recommendation_issued"),
        ],
    )
    def test_nor_writes_entries_that_look_like_one(self, answering: dict[str, Person], kind: str) -> None:
        refused = answering["bot"].post("/journey/events", {"kind": kind, "actor": ANN})
        assert (refused.status, "kind" in refused.json["detail"]) == (403, True), refused.body
        assert answering[ANN].post("/journey/events", {"kind": kind}).ok()["by"] == ANN

    def test_it_speaks_in_its_own_name(self, answering: dict[str, Person]) -> None:
        noted = answering["bot"].post("/journey/events", {"kind": "idea", "actor": ANN}).ok()
        assert (noted["actor"], noted["by"]) == ("bot", "bot")
        theirs = answering[ANN].post("/journey/events", {"kind": "idea", "actor": "the team"}).ok()
        assert (theirs["actor"], theirs["by"]) == ("the team", ANN)
        answering["bot"].post("/journey/decisions", {"title": "go", "session_id": "said"}).ok()
        (decided,) = answering[ANN].get("/journey/loop?session_id=said").ok()["events"]
        assert (decided["kind"], decided["actor"], decided["by"]) == ("decision_recorded", "agent", "bot")

    def test_nobody_writes_into_the_journey_of_another_s_run(self, answering: dict[str, Person]) -> None:
        run = answering[BEN].post("/runs", {"name": "b", "command": "true"}).ok()["id"]
        bodies = {"events": {"kind": "idea"}, "recommendations": {"title": "t"}, "decisions": {"title": "t"}}
        for route, body in bodies.items():
            for name in (ANN, "bot"):
                refused = answering[name].post(f"/journey/{route}", {**body, "run_id": run})
                assert (refused.status, BEN in refused.json["detail"]) == (403, True), refused.body
            for name in (BEN, "boss"):
                answering[name].post(f"/journey/{route}", {**body, "run_id": run}).ok()
            answering["bot"].post(f"/journey/{route}", {**body, "run_id": "a label of its own"}).ok()


@pytest.mark.parametrize(
    ("route", "body", "field"),
    [
        ("events", {}, "kind"),
        ("events", {"kind": "k", "timestamp": -1}, "timestamp"),
        ("events", {"kind": "k", "timestamp": float("nan")}, "timestamp"),
        ("events", {"kind": "k", "metadata": [1]}, "metadata"),
        ("events", {"kind": "k", "metadata": {"x": float("inf")}}, "body"),
        ("events", {"kind": "k", "run_id": "\0"}, "run_id"),
        ("recommendations", {"title": ""}, "title"),
        ("recommendations", {"title": "t", "confidence": 2}, "confidence"),
        ("recommendations", {"title": "t", "priority": "urgent"}, "priority"),
        ("recommendations", {"title": "t", "evidence_refs": ["x"] * 21}, "evidence_refs"),
        ("decisions", {"title": "t", "status": "odd"}, "status"),
        ("decisions", {"title": 3}, "title"),
    ],
)
def test_what_is_no_entry(common: Server, route: str, body: Any, field: str) -> None:
    answer = common.post(f"/journey/{route}", body)
    assert (answer.status, field in str(answer.json["detail"][0])) == (422, True), answer.body


@pytest.mark.parametrize("query", ["limit=0", "limit=2001", "limit=x"])
def test_a_look_that_makes_no_sense(common: Server, query: str) -> None:
    assert common.get(f"/journey/loop?{query}").json["detail"][0]["loc"] == ["query", "limit"]
