"""Kill, restart, and compare what was promised with what is there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


class Template:
    """Forks servers; see tests.crash.template."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.template"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._news = threading.Condition()
        self._pids: list[int] = []
        self._ended: dict[int, int] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            fact = json.loads(line)
            with self._news:
                if isinstance(fact, int):
                    self._pids.append(fact)
                else:
                    self._ended[fact[0]] = fact[1]
                self._news.notify_all()

    def spawn(self, script: str, **args: Any) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"script": script, "args": args}) + "\n")
        self._process.stdin.flush()
        with self._news:
            assert self._news.wait_for(lambda: bool(self._pids), 90), "the template does not answer"
            return self._pids.pop(0)

    def wait(self, pid: int, seconds: float = 90.0) -> int:
        with self._news:
            assert self._news.wait_for(lambda: pid in self._ended, seconds), f"server {pid} does not end"
            return self._ended.pop(pid)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def acknowledged(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for_ack(path: Path, what: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not any(fact["what"] == what for fact in acknowledged(path)):
        assert time.monotonic() < end, f"no {what} after {seconds} s"
        time.sleep(0.005)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def processes_of(attempt_ids: set[str]) -> list[int]:
    """Living processes that carry the mark of one of these attempts."""
    marks = {f"ROTA_ATTEMPT_ID={attempt}".encode() for attempt in attempt_ids}
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                environ = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
            except OSError:
                continue  # gone, or not ours
            if marks.intersection(environ):
                found.append(int(entry))
    return found


def violations(template: Template, where: Path, marks: Path, acks: Path) -> list[str]:
    """Restart on `where`, let everything end, and say what was lost, doubled, leaked or left over."""
    promised = acknowledged(acks)
    out = where.parent / "facts.json"
    out.unlink(missing_ok=True)
    pid = template.spawn("verify", data_dir=str(where), out=str(out))
    status = template.wait(pid)
    if status:
        return [f"the restarted server failed with {status}"]
    facts = json.loads(out.read_text())
    started = Counter(marks.read_text().split() if marks.exists() else [])
    wrong = [*facts["check"], *facts["replay"]]
    if facts["free"] != facts["installed"]:
        wrong.append(f"leaked: {facts['free']} of {facts['installed']} GPUs free")
    wrong += [f"leaked: attempt {name} is still live" for name in facts["live"]]
    wrong += [f"doubled: attempt {attempt} started {count} times" for attempt, count in started.items() if count > 1]
    wrong += _broken_promises(promised, facts["runs"], started)
    attempts = {attempt for run in facts["runs"].values() for attempt in run["attempts"]} | set(started)
    wrong += [f"left over: process {pid}" for pid in processes_of(attempts)]
    return wrong


def _broken_promises(promised: list[dict[str, Any]], runs: dict[str, Any], started: Counter[str]) -> list[str]:
    wrong = []
    cancelled = {fact["run"] for fact in promised if fact["what"] == "cancel"}
    for fact in promised:
        if "run" not in fact:
            continue
        run = runs.get(fact["run"])
        if run is None:
            wrong.append(f"lost: {fact}")
            continue
        if fact["what"] == "priority" and run["priority"] != fact["priority"]:
            wrong.append(f"lost: {fact}, priority is {run['priority']}")
        if fact["what"] == "cancel" and run["state"] not in ("cancelled", "succeeded"):
            wrong.append(f"lost: {fact}, state is {run['state']}")
    for run_id, run in runs.items():
        if run_id not in cancelled and run["name"] != "endless" and run["state"] not in ("succeeded", "cancelled"):
            wrong.append(f"wrong end: {run_id} {run}")
        if run["state"] == "succeeded" and not any(started[attempt] for attempt in run["attempts"]):
            wrong.append(f"succeeded without a start: {run_id}")
        if len(run["attempts"]) != len(set(run["attempts"])) or any(s < 0 for s in run["gpu_s"]):
            wrong.append(f"accounting: {run_id} {run}")
        beyond = [attempt for attempt in started if attempt.startswith(run_id) and attempt not in run["attempts"]]
        if beyond:
            wrong.append(f"started but never recorded: {beyond}")
    return wrong
