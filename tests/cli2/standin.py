"""A small server that speaks the lease door as its clients know it: grants in order, forgets the dead and the gone.

It lives in a process of its own, so that a test can kill it like a server, and prints its port.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

GPUS = int(os.environ.get("STANDIN_GPUS", "4"))
TOKEN = os.environ.get("STANDIN_TOKEN", "")
changed = threading.Condition()
jobs: dict[str, dict[str, Any]] = {}
keys: dict[str, str] = {}
order: list[str] = []


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


def schedule() -> None:
    """Called with the lock: the dead give back, the first in the queue take."""
    for job in jobs.values():
        if job["status"] == "running" and not alive(job["pid"]):
            job["status"] = "done"
    while order:
        job = jobs[order[0]]
        taken = {gpu for other in jobs.values() if other["status"] == "running" for gpu in other["gpus"]}
        free = [gpu for gpu in range(GPUS) if gpu not in taken]
        if len(free) < job["num_gpus"]:
            return
        job |= {"status": "running", "gpus": free[: job["num_gpus"]]}
        order.pop(0)
        changed.notify_all()


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def answer(self, code: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if TOKEN and self.headers.get("X-Auth-Token") != TOKEN:
            return self.answer(401, {"detail": "Unauthorized - invalid or missing X-Auth-Token"})
        with changed:
            schedule()
            if self.path == "/jobs":
                return self.answer(200, list(jobs.values()))
            if self.path == "/status":
                held = [gpu for job in jobs.values() if job["status"] == "running" for gpu in job["gpus"]]
                count = [job["status"] for job in jobs.values()]
                return self.answer(
                    200,
                    {
                        "service": "local-gpu-scheduler",
                        "version": "1",
                        "uptime_s": 3,
                        "port": self.server.server_port,
                        "gpus_total": GPUS,
                        "gpus_allocated": sorted(held),
                        "jobs_running": count.count("running"),
                        "jobs_queued": count.count("queued"),
                        "jobs_total": len(jobs),
                    },
                )
        return self.answer(404, {"error": "not found"})

    def do_POST(self) -> None:
        if TOKEN and self.headers.get("X-Auth-Token") != TOKEN:
            return self.answer(401, {"detail": "Unauthorized - invalid or missing X-Auth-Token"})
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
            pid, wanted = body["pid"], body.get("num_gpus", 1)
            assert isinstance(pid, int)
        except (ValueError, KeyError, AssertionError):
            return self.answer(400, {"error": "pid must be an integer"})
        if wanted < 0:
            return self.answer(400, {"error": "num_gpus must not be negative"})
        if wanted > GPUS:
            text = f"requested {wanted} GPU(s) but only {GPUS} available on this machine"
            return self.answer(400, {"error": text})
        if not alive(pid):
            return self.answer(200, {"error": "pid not alive"})
        self.acquire(pid, wanted, self.headers.get("Idempotency-Key", ""), body)

    def acquire(self, pid: int, wanted: int, key: str, body: dict[str, Any]) -> None:
        with changed:
            job_id = keys.get(key) or os.urandom(6).hex()
            if job_id not in jobs:
                jobs[job_id] = {"id": job_id, "gpus": [], "num_gpus": wanted, "status": "queued", "pid": pid}
                jobs[job_id]["cmd"] = body.get("name", "")
                order.append(job_id)
                if key:
                    keys[key] = job_id
            schedule()
            while jobs[job_id]["status"] == "queued":
                changed.wait(0.05)
                gone = select.select([self.connection], [], [], 0)[0]
                if gone or not alive(pid):
                    order.remove(job_id)
                    del jobs[job_id]
                    self.close_connection = True
                    return
                schedule()
            gpus = ",".join(map(str, jobs[job_id]["gpus"]))
        self.answer(200, {"job_id": job_id, "gpus": gpus})


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    allow_reuse_address = True


def main() -> None:
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    for line in sys.argv[2:]:  # leases that were given before this server began
        pid, gpus = line.split(":")
        jobs[f"old{pid}"] = {
            "id": f"old{pid}",
            "gpus": [int(gpu) for gpu in gpus.split(",")],
            "num_gpus": len(gpus.split(",")),
            "status": "running",
            "pid": int(pid),
        }
    server = Server(("127.0.0.1", port), Handler)
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
