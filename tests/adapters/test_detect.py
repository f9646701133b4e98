"""What kind of cluster is this? Small fake programs on a private PATH, a real port for Ray."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rota.adapters.detect import ask, sightings
from rota.adapters.detect.detector import ClusterDetector
from rota.core.clusters import LABELS, canonical
from tests.app.house import SOURCES, until

SINFO = """
case "$*" in
  *%G*) printf 'gpu1 gpu:a100:4(S:0-1)\\ngpu1 gpu:a100:4(S:0-1)\\ngpu2 gpu:8,shard:16\\ncpu1 (null)\\n' ;;
  *) printf 'gpu1 1 gpu* idle\\ngpu1 1 long mix\\ngpu2 1 gpu* alloc\\ncpu1 1 cpu idle\\n' ;;
esac
"""
KUBECTL = """
case "$*" in
  *custom-columns*) printf '8\\n<none>\\n4\\n' ;;
  *) printf 'a Ready worker 3d v1.31\\nb Ready control-plane 3d v1.31\\nc NotReady worker 3d v1.31\\n' ;;
esac
"""


class Machine:
    """A machine with nothing on it but what a test puts there."""

    def __init__(self, where: Path) -> None:
        self.bin, self.home = where / "bin", where / "home"
        self.bin.mkdir()
        self.home.mkdir()
        self.gpus = 0
        self.env: dict[str, str] = {"PATH": str(self.bin), "HOME": str(self.home)}

    def program(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}")
        path.chmod(0o755)

    def ssh_config(self, text: str) -> None:
        (self.home / ".ssh").mkdir()
        (self.home / ".ssh" / "config").write_text(text)

    def detect(self, preferred: str | None = None) -> Any:
        return ClusterDetector(self.env, lambda: self.gpus).detect(preferred)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    for patience in ("COMMAND_S", "NETWORK_S"):  # what is there answers, however slow the machine is
        monkeypatch.setattr(ask, patience, 60.0)
    with socket.socket() as taken:  # a port that nothing listens on, in place of Ray's own
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(sightings, "RAY_DASHBOARD", taken.getsockname()[1])
        yield Machine(tmp_path)


@contextmanager
def dashboard(answers: Mapping[str, Any], token: str = "", shown: list[str] | None = None) -> Iterator[int]:
    """Ray's dashboard. With a token it answers as Ray does: 401 without one, 403 with a wrong one. `shown` gets every
    Authorization header that it was sent."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.headers.get("Authorization")
            if given is not None and shown is not None:
                shown.append(given)
            body = json.dumps(answers[self.path]).encode() if self.path in answers else b""
            status = 200 if body else 404
            if token and self.path != "/api/authentication_mode" and given != f"Bearer {token}":
                body, status = b"", 401 if given is None else 403
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


RAY = {
    "/api/version": {"ray_version": "2.40"},
    "/api/cluster_status": {"data": {"clusterStatus": {"loadMetricsReport": {"usage": {"GPU": [3.0, 12.0]}}}}},
    "/nodes?view=summary": {"data": {"summary": [{"raylet": {"state": "ALIVE"}}, {"raylet": {"state": "DEAD"}}]}},
}


def test_an_answer_that_comes_byte_by_byte_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, and all of them in weeks."""
    monkeypatch.setattr(ask, "ANSWER_S", 1.0, raising=False)
    over = threading.Event()

    def drip(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n")
            while not over.wait(0.1):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(2) as threads:
        try:
            threads.submit(drip, listening)
            asked = threads.submit(ask.get, "127.0.0.1", listening.getsockname()[1], "/api/version")
            until(asked.done, "it was given up")
        finally:
            over.set()
        assert asked.result() == (0, None)


def test_a_program_that_cannot_be_ended_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its output is held by a process of another session, which no kill of ours reaches."""
    monkeypatch.setattr(ask, "COMMAND_S", 0.5)
    machine = Machine(tmp_path)
    machine.program("sinfo", f"setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 1000' &\nsleep 1000\n")
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ask.command, machine.env, ("sinfo", "-h"))
        pid = int(until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip(), "it runs"))
        try:
            until(asked.done, "it was given up")
        finally:
            os.kill(pid, signal.SIGKILL)
        assert asked.result() is None


def test_a_bare_machine_is_cpu_only(machine):
    found = machine.detect()
    assert (found.type, found.confidence, found.gpu_count, found.node_count) == ("cpu_only", 0.35, 0, 1)
    assert (found.slurm_nodes, found.kubernetes_nodes, found.ssh_hosts, found.signals) == (0, 0, 0, ())


def test_a_slurm_node_counts_once_however_many_partitions_it_is_in(machine):
    machine.program("sinfo", SINFO)
    machine.gpus = 1
    found = machine.detect()
    assert (found.type, found.confidence, found.status) == ("slurm", 0.80, "healthy")
    assert (found.node_count, found.slurm_nodes) == (3, 3)
    assert found.gpu_count == 12, "the cluster's own, not this machine's"


def test_inside_a_slurm_job_it_is_surer_but_not_healthy_unseen(machine):
    machine.env["SLURM_JOB_ID"] = "7"
    found = machine.detect()
    assert (found.type, found.confidence, found.status, found.gpu_count) == ("slurm", 0.90, "unknown", None)


@pytest.mark.parametrize(
    ("states", "status"), [("idle mix", "healthy"), ("down* idle", "degraded"), ("drained down", "offline")]
)
def test_a_slurm_cluster_is_as_healthy_as_its_nodes(machine, states, status):
    rows = "".join(f"n{n} 1 gpu {state}\\n" for n, state in enumerate(states.split()))
    machine.program("sinfo", f"printf '{rows}'")
    assert machine.detect().status == status


def test_kubernetes_by_kubectl_and_by_being_in_a_pod(machine):
    machine.env["KUBERNETES_SERVICE_HOST"] = "10.0.0.1"
    found = machine.detect()
    assert (found.type, found.confidence, found.status) == ("kubernetes", 0.93, "unknown")
    del machine.env["KUBERNETES_SERVICE_HOST"]
    machine.program("kubectl", KUBECTL)
    machine.program("sinfo", SINFO)
    found = machine.detect()
    assert (found.type, found.confidence, found.status) == ("kubernetes", 0.82, "degraded")
    assert (found.node_count, found.kubernetes_nodes, found.gpu_count) == (3, 3, 12)
    assert found.slurm_nodes == 3, "what else was seen is told"


def test_local_gpus_one_or_several(machine):
    machine.gpus = 1
    one = machine.detect()
    machine.gpus = 8
    many = machine.detect()
    assert [(each.type, each.confidence, each.gpu_count) for each in (one, many)] == [
        ("local_gpu", 0.68, 1),
        ("local_gpu", 0.78, 8),
    ]
    assert many.status == "healthy"


def test_ray_by_its_dashboard_with_the_clusters_own_totals(machine, monkeypatch):
    with dashboard(RAY) as port:
        monkeypatch.setattr(sightings, "RAY_DASHBOARD", port)
        alone = machine.detect()
        machine.gpus = 2
        beside = machine.detect()
        machine.env["RAY_ADDRESS"] = f"http://127.0.0.1:{port}"
        named = machine.detect()
        machine.gpus = 0
        named_alone = machine.detect()
    confidences = [each.confidence for each in (alone, beside, named, named_alone)]
    assert confidences == [0.70, 0.78, 0.88, 0.85]
    for each in (alone, beside, named, named_alone):
        assert (each.type, each.status, each.gpu_count, each.node_count) == ("ray", "healthy", 12, 1)


def test_a_ray_that_does_not_answer_is_no_ray(machine):
    machine.env["RAY_ADDRESS"] = f"127.0.0.1:{sightings.RAY_DASHBOARD}"
    machine.gpus = 4
    found = machine.detect()
    assert found.type == "local_gpu"
    assert any("RAY_ADDRESS is set, but nothing answers" in signal for signal in found.signals)


def test_a_stranger_on_rays_port_is_no_ray(machine, monkeypatch):
    with dashboard({"/": "hello"}) as port:
        monkeypatch.setattr(sightings, "RAY_DASHBOARD", port)
        assert machine.detect().type == "cpu_only"


@pytest.mark.parametrize(
    "answer",
    [
        None, [], {"data": None}, {"data": {"clusterStatus": []}}, {"data": {"summary": 7}},
        {"data": {"clusterStatus": {"loadMetricsReport": {"usage": {"GPU": [0.0, float("inf")]}}}}},
    ],
)  # fmt: skip
def test_a_ray_of_another_version_is_still_a_ray(machine, monkeypatch, answer):
    odd = {"/api/version": {}, "/api/cluster_status": answer, "/nodes?view=summary": answer}
    with dashboard(odd) as port:
        monkeypatch.setattr(sightings, "RAY_DASHBOARD", port)
        found = machine.detect()
    assert (found.type, found.gpu_count, found.node_count) == ("ray", None, 1)


@pytest.mark.parametrize("address", ["ray://[::1", "http://host:notaport", "::::", "auto", "//"])
def test_an_address_that_makes_no_sense_is_survived(machine, address):
    machine.env["RAY_ADDRESS"] = address
    assert machine.detect().type == "cpu_only"


def test_three_concrete_ssh_hosts_make_a_head_node(machine):
    machine.ssh_config("Host a b\n  HostName x\nHost *\nhost=gpu-?? !c\n")
    assert (machine.detect().type, machine.detect().ssh_hosts) == ("cpu_only", 2)
    (machine.home / ".ssh" / "config").write_text('Host a b\nHOST "c"\n')
    found = machine.detect()
    assert (found.type, found.confidence, found.ssh_hosts, found.status) == ("shared_head_node", 0.64, 3, "unknown")


def test_the_environment_may_say_it_and_a_person_even_more(machine):
    machine.program("sinfo", SINFO)
    machine.env["RESEARCH_AGENT_CLUSTER_TYPE"] = "Local-GPU"
    said = machine.detect()
    assert (said.type, said.confidence, said.status) == ("local_gpu", 0.98, "unknown")
    forced = machine.detect("slurm")
    assert (forced.type, forced.confidence, forced.gpu_count) == ("slurm", 1.0, 12)
    with pytest.raises(ValueError, match="use one of unknown, slurm"):
        machine.detect("mainframe")
    machine.env["RESEARCH_AGENT_CLUSTER_TYPE"] = "mainframe"
    assert machine.detect().type == "slurm", "a word that means nothing forces nothing"


def test_every_word_for_a_kind_is_known():
    words = ["local-gpu", "localgpu", "local_gpu_cluster", "shared_gpu", "shared-gpu-head-node", "head_node", "K8S"]
    kinds = ["local_gpu"] * 3 + ["shared_head_node"] * 3 + ["kubernetes"]
    assert [canonical(word) for word in words] == kinds
    assert [canonical(word) for word in LABELS] == list(LABELS)
    assert canonical("") is None


def test_a_program_that_hangs_or_fails_is_given_up_with_all_it_started(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(ask, "COMMAND_S", 2.0)
    machine.program("sinfo", f"sleep 1000 & echo $! > {tmp_path}/pid; wait")
    machine.program("kubectl", "echo 'a Ready'; exit 1")
    assert machine.detect().type == "cpu_only"
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 60
    while _alive(pid):
        assert time.monotonic() < deadline, "what the program started lives on"
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_only_the_given_environment_is_looked_at(machine, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert machine.detect().type == "cpu_only"


def install_shims(machine: Machine) -> None:
    argv = [sys.executable, "-m", "rota", "shims", "install", "--force", "--dir", str(machine.bin)]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(machine.home), "PYTHONPATH": SOURCES}
    subprocess.run(argv, env=env, check=True, capture_output=True)


def test_our_own_shims_are_no_slurm(machine):
    """A machine with GPUs, and a Rota server that the shims' sinfo would describe as a cluster of Slurm's."""
    install_shims(machine)
    (machine.bin / "sinfo").write_text(
        f"{(machine.bin / 'sinfo').read_text().partition('exec')[0]}echo n1 1 gpu idle\n"
    )
    machine.gpus = 4
    found = machine.detect()
    assert (found.type, found.slurm_nodes) == ("local_gpu", 0)


def test_a_real_slurm_behind_our_shims_is_seen(machine, tmp_path):
    install_shims(machine)
    real = tmp_path / "real"
    real.mkdir()
    behind = Machine.__new__(Machine)
    behind.bin = real
    behind.program("sinfo", SINFO)
    machine.env["PATH"] += f":{real}"
    found = machine.detect()
    assert (found.type, found.slurm_nodes) == ("slurm", 3)


def test_inside_a_run_of_ours_slurms_variables_are_ours(machine):
    machine.env |= {"ROTA_JOB_ID": "a1", "SLURM_JOB_ID": "a1", "SLURM_JOB_NODELIST": "node-1", "SLURM_NNODES": "1"}
    machine.gpus = 1
    assert machine.detect().type == "local_gpu"
    machine.env["SLURM_JOB_ID"] = "77"  # submitted from inside a job of a real Slurm, whose variables it keeps
    assert machine.detect().type == "slurm"


LOCKED = {**RAY, "/api/authentication_mode": {"authentication_mode": "token"}}


def test_ray_behind_a_token_is_seen(machine, monkeypatch):
    shown: list[str] = []
    with dashboard(LOCKED, "secret", shown) as port:
        monkeypatch.setattr(sightings, "RAY_DASHBOARD", port)
        machine.env["RAY_AUTH_TOKEN"] = "secret"
        found = machine.detect()
        assert (found.type, found.status, found.gpu_count) == ("ray", "unknown", None)
        assert "wants a token" in found.description
        assert shown == [], "a token is for the place that was named, not for whoever listens on a port"
        machine.env["RAY_ADDRESS"] = "auto"
        found = machine.detect()
        assert (found.type, found.status, found.node_count, found.gpu_count) == ("ray", "healthy", 1, 12)
        assert set(shown) == {"Bearer secret"}


@pytest.mark.parametrize("source", ["RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token"])
def test_rays_token_is_found_where_ray_looks(machine, monkeypatch, tmp_path, source):
    path = tmp_path / "token" if source.startswith("RAY") else machine.home / ".ray" / "auth_token"
    path.parent.mkdir(exist_ok=True)
    path.write_text("  secret \n")
    if source.startswith("RAY"):
        machine.env[source] = str(path)
    with dashboard(LOCKED, "secret") as port:
        machine.env["RAY_ADDRESS"] = f"http://127.0.0.1:{port}"
        assert machine.detect().gpu_count == 12


def test_a_token_that_ray_refuses_is_told(machine):
    with dashboard(LOCKED, "secret") as port:
        machine.env |= {"RAY_ADDRESS": f"http://127.0.0.1:{port}", "RAY_AUTH_TOKEN": "old"}
        found = machine.detect()
        assert (found.type, found.status) == ("ray", "unknown")
        assert any("refuses the token" in signal for signal in found.signals)
        assert "old" not in repr(found).replace("older", ""), "a token is shown nowhere"


def test_another_server_that_wants_a_password_is_no_ray(machine, monkeypatch):
    with dashboard({}, "secret") as port:
        monkeypatch.setattr(sightings, "RAY_DASHBOARD", port)
        machine.gpus = 1
        assert machine.detect().type == "local_gpu"
