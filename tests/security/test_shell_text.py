"""Shell text in every field but the command is data: runs are started with it, and nothing of it is ever evaluated. SQL
text is stored as the text it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rota.api.tokens import hash_of
from tests.app.house import until
from tests.security.kit import SHARED, Lab, ask
from tests.security.test_matrix import JOB, RUN


def shell_texts(canary: Path) -> dict[str, str]:
    """Each would make its own file, so that the one that gets through is known by name."""
    return {
        "dollar": f"$(touch {canary}/dollar)",
        "backtick": f"`touch {canary}/backtick`",
        "semicolon": f"x; touch {canary}/semicolon;",
        "newline": f"x\ntouch {canary}/newline\n",
        "quote": f"'; touch {canary}/quote; '",
        "double": f'"; touch {canary}/double; "',
        "pipe": f"x | touch {canary}/pipe",
        "and": f"x && touch {canary}/and",
        "paren": f"x) ; touch {canary}/paren ; (",
        "dash": f"--exec=touch {canary}/dash",
        "redirect": f"> {canary}/redirect",
        "template": "{{7*7}}${7*7}",
        "env": f"${{IFS}}touch${{IFS}}{canary}/env",
        "python": f"__import__('os').mknod('{canary}/python')",
        "format": "%s%s%n{0.__class__}",
    }


def fields(text: str) -> list[tuple[str, str, dict[str, Any]]]:
    """(door, field, body): every string a door takes besides the command itself."""
    space = dict.fromkeys(("root", "commit", "branch", "remote", "diff"), text) | {"argv": [text], "env": {"W": text}}
    of_a_run: dict[str, Any] = {
        "name": text, "chat_session_id": text, "parent_run_id": text, "origin_alert_id": text, "user": text,
        "tags": [text],
        "env": {"HARMLESS": text}, "gpu_type": text, "idempotency_key": text, "workdir": text, "account": text,
        "workspace": space, "depends_on": [text], "sweep_id": text,
    }  # fmt: skip
    found = [
        ("/runs", field, {**RUN, "auto_start": True, "gpu_count": 0, field: value}) for field, value in of_a_run.items()
    ]
    of_a_job = {
        "run_id": text,
        **{name: of_a_run[name] for name in of_a_run if name not in ("name", "workdir", "sweep_id")},
    }
    found += [("/queue/submit", field, {**JOB, "gpu_count": 0, field: value}) for field, value in of_a_job.items()]
    sweep = {"name": "s", "base_command": "true", "parameters": {"x": [1]}, "auto_start": True, "gpu_count": 0}
    of_a_sweep = {
        "name": text,
        "goal": text,
        "chat_session_id": text,
        "ui_config": {text: text},
        "env": {"HARMLESS": text},
    }
    of_a_sweep |= {"parameters": {"x": [text]}, "workspace": space}
    found += [("/sweeps", field, {**sweep, field: value}) for field, value in of_a_sweep.items()]
    found += [("/sweeps/wild", field, {field: text}) for field in ("name", "goal", "chat_session_id", "user")]
    found += [("/sessions", field, {field: text}) for field in ("title", "model_provider", "model_id")]
    found += [("/cluster", field, {"type": "slurm", field: text}) for field in ("head_node", "notes")]
    found += [
        ("/journey/events", field, {"kind": "note", field: text}) for field in ("note", "actor", "run_id", "session_id")
    ]
    found += [("/journey/decisions", field, {"title": "t", field: text}) for field in ("title", "rationale", "outcome")]
    found += [
        ("/journey/recommendations", field, {"title": "t", field: text}) for field in ("title", "action", "rationale")
    ]
    found += [("/tokens", field, {"user": "carl", field: text}) for field in ("user", "note", "acts_for", "role")]
    found += [("/nodes/NODE/drain", "why", {"why": text}), ("/nodes/NODE/undrain", "", {})]
    found += [("/runs/RUN/alerts", "message", {"message": text, "choices": [text]})]
    found += [
        ("/runs/RUN/status", field, {"status": "running", field: text}) for field in ("error", "tmux_pane", "wandb_dir")
    ]
    found += [("/runs/RUN/metrics", "rows", {"rows": [{text: 1.0, "note": text}]})]
    found += [("/prompt-skills/wild_v2_execution_ops_protocol/render", "", {text: text})]
    found += [("/cluster/detect", "preferred_type", {"preferred_type": text})]
    return found


def test_no_text_but_the_command_is_ever_evaluated(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.mkdir(mode=0o777)
    os.chmod(canary, 0o777)  # noqa: S103 - every job may write there, should it come to that
    os.chmod(tmp_path, 0o755)  # noqa: S103
    lab = make_lab(env={"RESEARCH_AGENT_MAX_QUEUE_SIZE": "100000"})
    node = lab.ask("GET", "/gpu/status").ok()["cluster_status"]["nodes"][1]["node_id"]
    tried = taken = 0
    for text in shell_texts(canary).values():
        held = lab.ask("POST", "/runs", RUN).ok()["id"]
        for door, field, body in fields(text):
            path = door.replace("NODE", node).replace("RUN", held)
            answer = lab.ask("POST", path, body)
            tried += 1
            taken += answer.status == 200
            assert answer.status < 500, (path, field, answer.body[:300])
        for header in ("idempotency-key", "x-request-id", "user-agent"):
            lab.ask("POST", "/queue/submit", {**JOB, "gpu_count": 0}, headers={header: text.replace("\n", " ")})
        for port in (lab.port, lab.lease_port):
            lease = {"pid": os.getpid() + 4_000_000, "num_gpus": 0, "name": text, "argv": [text]}
            assert ask(port, "POST", "/acquire", lease, token=lab.token if port == lab.port else None).status < 500
        lab.ask("POST", f"/runs/{held}/stop")
    until(lambda: not _waiting(lab), "all of them have run", 100)
    ran = lab.ask("GET", "/orchestrator/status").ok()["stats"]["jobs_completed"]
    print(f"shell text: {tried} bodies, {taken} taken, {ran} runs completed")
    assert tried > 900
    assert ran > 150
    assert os.listdir(canary) == []


def _waiting(lab: Lab) -> list[Any]:
    found: list[Any] = [*(queue := lab.ask("GET", "/queue").ok())["queued"], *queue["running"]]
    return found


SQL = (
    "'; DROP TABLE runs; --", "' OR '1'='1", "\" OR 1=1 --", "x'); DELETE FROM events; --", "1; ATTACH 'x' AS y", "%",
    "_", "\\",
    "' UNION SELECT body FROM records --", ":name", "?", "$1", "%(x)s", "/*", "0x27",
    "'||(SELECT hash FROM records)||'",
)  # fmt: skip


def test_sql_is_text(lab: Lab) -> None:
    tried = 0
    for text in SQL:
        run = lab.ask(
            "POST", "/runs", {**RUN, "name": text, "tags": [text], "chat_session_id": text, "user": text}
        ).ok()
        assert (run["name"], run["chat_session_id"], run["user"]) == (text, text, text)
        assert lab.ask("GET", f"/runs/{run['id']}").ok()["name"] == text
        for door, field, body in fields(text):
            if door not in ("/tokens", "/nodes/NODE/drain", "/nodes/NODE/undrain"):
                answer = lab.ask("POST", door.replace("RUN", run["id"]) + "?dry_run=true", body)
                assert answer.status < 500, (door, field, answer.body[:300])
                tried += 1
        for path in (
            "/runs?user=",
            "/runs?sweep_id=",
            "/runs?cursor=",
            "/runs/",
            "/queue/",
            "/sweeps/",
            "/journey/loop?run_id=",
        ):
            escaped = "".join(f"%{byte:02x}" for byte in text.encode())
            answer = lab.ask("GET", path + escaped)
            assert answer.status in (200, 400, 404, 422), (path, answer.body[:300])
            assert hash_of(SHARED).encode() not in answer.body
            assert b'"hash"' not in answer.body
            if path == "/runs?user=" and answer.status == 200:
                assert [found["user"] for found in answer.json] == [text] * len(answer.json)
    assert len(lab.ask("GET", "/runs?limit=1000").ok()) == len(SQL), "no row is gone and none came"
    print(f"SQL text: {tried} bodies")
