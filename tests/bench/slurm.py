"""Rows 3 and 4 beside a real Slurm, tuned as well as one can in its own configuration, on this machine, in this run.

A whole private cluster (munge, controller, two node daemons, 16 GPUs that are symlinks) comes up in a temporary
directory and goes again. Needs Debian's slurm-wlm and munge: `tools/system-packages bench`.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.bench.dispatch import _opened, _signalled
from tests.bench.doors import PAUSED, _Connection, _idle, drain_rate, job
from tests.bench.served import free_port, request, served
from tests.bench.table import Row, percentile

CONF = """
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ctl_port}
AuthType=auth/munge
AuthInfo=socket={root}/munge.sock
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/ctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/ctld.log
SlurmdLogFile={root}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
MpiDefault=none
ReturnToService=2
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
JobAcctGatherType=jobacct_gather/none
MaxJobCount=20000
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=1000,sched_interval=1,default_queue_depth=2000,bf_interval=1
{nodes}
PartitionName=main Nodes=node1,node2 Default=YES MaxTime=INFINITE State=UP
"""
NODE = (
    "NodeName=node{n} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} Sockets=1 CoresPerSocket=32 ThreadsPerCore=1 "
    "RealMemory=8000 Gres=gpu:h100:8"
)


class Slurm:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = {**os.environ, "SLURM_CONF": str(root / "slurm.conf")}

    def sbatch(self, line: str, *flags: str) -> str:
        argv = ["sbatch", "--parsable", "--gres=gpu:1", "--mem=1", "-o", "/dev/null", *flags, "--wrap", line]
        return subprocess.run(argv, env=self.env, check=True, capture_output=True, text=True, cwd="/tmp").stdout.strip()

    def run(self, *argv: str) -> str:
        return subprocess.run(argv, env=self.env, check=True, capture_output=True, text=True, timeout=60).stdout


@contextmanager
def cluster() -> Iterator[Slurm]:
    host, user = socket.gethostname(), pwd.getpwuid(os.geteuid()).pw_name
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-", dir="/var/tmp")))
        (root / "munge.key").write_bytes(secrets.token_bytes(128))
        os.chmod(root / "munge.key", 0o400)
        for name in ("state", "spool-node1", "spool-node2", "dev"):
            (root / name).mkdir()
        for n in range(8):
            (root / "dev" / f"nvidia{n}").symlink_to("/dev/null")
        (root / "gres.conf").write_text(f"NodeName=node[1-2] Name=gpu Type=h100 File={root}/dev/nvidia[0-7]\n")
        nodes = "\n".join(NODE.format(n=n, host=host, port=free_port()) for n in (1, 2))
        conf = CONF.format(host=host, user=user, ctl_port=free_port(), root=root, nodes=nodes)
        (root / "slurm.conf").write_text(conf)
        slurm = Slurm(root)
        _munge(root, stack)
        _daemon(stack, slurm, "slurmctld", "-D", "-i")
        for n in (1, 2):
            _daemon(stack, slurm, "slurmd", "-D", "-N", f"node{n}")
        _ready(slurm)
        yield slurm
        slurm.run("scancel", f"--user={user}")


def _munge(root: Path, stack: ExitStack) -> None:
    places = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munge.pid", "log-file": "munge.log"}
    flags = [f"--{flag}={root / name}" for flag, name in places.items()]
    seed = f"--seed-file={root / 'munge.seed'}"
    process = subprocess.Popen(["munged", "--foreground", "--force", *flags, seed], stderr=subprocess.DEVNULL)
    stack.callback(_end, process)
    until = time.monotonic() + 10
    while not (root / "munge.sock").exists():
        assert time.monotonic() < until, "munged did not come up"
        time.sleep(0.05)


def _daemon(stack: ExitStack, slurm: Slurm, *argv: str) -> None:
    process = subprocess.Popen(argv, env=slurm.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _ready(slurm: Slurm) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            if slurm.run("sinfo", "-h", "-N", "-o", "%T").split() == ["idle", "idle"]:
                return
        except subprocess.CalledProcessError:
            pass
        time.sleep(0.2)
    raise TimeoutError(f"Slurm did not come up; see {slurm.root}")


def beside_slurm(scale: float) -> list[Row]:
    if shutil.which("slurmctld") is None or shutil.which("munged") is None:
        why = "no Slurm here: tools/system-packages bench"
        return [Row("3, 4", "beside a tuned Slurm", "-", why, "-", "20x, 10x", "-", "not taken")]
    starts, jobs = max(5, int(30 * scale)), max(100, int(1000 * scale))
    with served() as server:
        mine = percentile(_our_first_lines(server, starts), 0.5)
    with served(env=PAUSED) as server:
        ours = drain_rate(server, jobs)
    with cluster() as slurm:
        fifo = slurm.root / "fifo"
        _opened(fifo)
        theirs = percentile([_first_line(slurm, fifo) for _ in range(starts)], 0.5)
        drained = _drain(slurm, jobs // 2)
        version = slurm.run("sinfo", "--version").strip()
    return [
        Row(
            "3",
            f"submit to the first line, beside {version} (tuned), p50",
            f"{mine * 1e3:.1f} ms",
            f"sbatch to the first line {theirs * 1e3:.0f} ms",
            f"{theirs / mine:.0f}x faster",
            "20x",
            "300x",
            "moonshot" if theirs / mine >= 300 else "goal" if theirs / mine >= 20 else "below",
        ),
        Row(
            "4",
            f"`true` on 16 slots, beside {version} (tuned)",
            f"{ours:,.0f} jobs/s",
            f"Slurm {drained:.1f} jobs/s",
            f"{ours / drained:.0f}x",
            "10x",
            "-",
            "goal" if ours / drained >= 10 else "below",
        ),
    ]


def _our_first_lines(server: object, count: int) -> list[float]:
    from tests.bench.served import Served

    assert isinstance(server, Served)
    fifo = server.data.parent / "fifo"
    _opened(fifo)
    connection = _Connection(server.port)
    wanted = request("POST", "/queue/submit", job(f"echo x; echo x > {fifo}"))
    took = []
    for _ in range(count):
        begun = time.perf_counter()
        connection.send(wanted)
        _signalled(fifo)
        took.append(time.perf_counter() - begun)
        _idle(server)
    return took


def _first_line(slurm: Slurm, fifo: Path) -> float:
    begun = time.perf_counter()
    slurm.sbatch(f"echo x; echo x > {fifo}")
    _signalled(fifo)
    took = time.perf_counter() - begun
    _empty(slurm)
    return took


def _empty(slurm: Slurm) -> None:
    while slurm.run("squeue", "-h", "-o", "%i").strip():
        time.sleep(0.05)


def _drain(slurm: Slurm, jobs: int) -> float:
    """All sent while nothing may start, then let go at once, as ours."""
    for node in ("node1", "node2"):
        slurm.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=bench")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: slurm.sbatch("true"), range(jobs)))
    begun = time.perf_counter()
    for node in ("node1", "node2"):
        slurm.run("scontrol", "update", f"nodename={node}", "state=resume")
    _empty(slurm)
    return jobs / (time.perf_counter() - begun)
