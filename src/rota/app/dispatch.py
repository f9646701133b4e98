"""From a planned attempt to the order a backend gets: its environment, its tasks, its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rota.app.accounts import ONE_FOR_ALL, Accounts
from rota.app.checkpoint_dirs import CheckpointDirs
from rota.app.ports import Backend, LaunchOrder, StopOrder, Task
from rota.core.grace import given_s
from rota.core.predict import hash_text
from rota.core.run import Attempt, Run
from rota.core.state import State
from rota.core.suspended import was_preempted
from rota.core.warning import warning

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Site:
    """What every job on this machine gets."""

    checkpoints: CheckpointDirs
    env: Mapping[str, str] = field(default_factory=dict)  # of jobs that run as the server's own account: HOME, USER
    accounts: Accounts = ONE_FOR_ALL  # who runs as whom


def launch_order(state: State, run: Run, site: Site) -> LaunchOrder:
    attempt = run.attempt
    assert attempt is not None
    spec = run.spec
    warned = warning(spec)
    saved = site.checkpoints.of(run.id, spec.account)
    return LaunchOrder(
        attempt_id=attempt.id,
        argv=spec.argv,
        env=_environment(run, attempt, site, saved.path),
        workdir=spec.workdir,
        tasks=_tasks(state, run, attempt),
        umask=spec.umask,
        account=spec.account,
        time_limit_s=spec.time_limit_s,
        warn_signal=warned.signal if warned is not None else 0,
        warn_s=warned.before_s if warned is not None else 0.0,
        grace_s=given_s(run),
        log_cap_bytes=spec.log_cap_bytes,
        terminal=spec.terminal,
        confine=any(not state.nodes[part.node].simulated for part in attempt.placement),
        checkpoint_dir=saved.path,
        checkpoint_parent=saved.parent,
        holder=spec.holder,
        memory_gb=spec.request.memory_gb,
        cpus=spec.request.cpus,
    )


def stop(backend: Backend, run: Run, *, overdue: bool = False) -> None:
    attempt = run.attempt
    assert attempt is not None
    assert attempt.stop is not None
    asked = attempt.stop
    order = StopOrder(asked.cause.value, asked.signal, asked.grace_s, run.spec.saves, run.spec.holder, overdue)
    backend.stop(attempt.id, order)


def _environment(run: Run, attempt: Attempt, site: Site, saved: str) -> Mapping[str, str]:
    nodes = [part.node for part in attempt.placement]
    own = site.env if run.spec.account is None else {}
    env = {"PATH": PATH, "LANG": "C.UTF-8", **own, **run.spec.env}
    inside_slurm = "SLURM_JOB_ID" in run.spec.env
    env |= {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "ROTA_JOB_ID": run.id,
        "ROTA_JOB_NAME": run.spec.name,
        "ROTA_ATTEMPT": str(attempt.number),
        "ROTA_RESTART_COUNT": str(attempt.number - 1),
        "ROTA_USER": run.user,
        "ROTA_NODES": str(len(nodes)),
        "ROTA_NODELIST": ",".join(nodes),
        "ROTA_CHECKPOINT_DIR": saved,
        # away from the ephemeral range, for torchrun and the like; two attempts seldom get the same
        "ROTA_MASTER_PORT": str(20000 + hash_text(attempt.id) % 10000),
    }
    env.pop("ROTA_PREEMPTED", None)  # of the job it may have been submitted from
    if run.past and was_preempted(run.past[-1]):
        env["ROTA_PREEMPTED"] = "1"
    if not inside_slurm:  # W&B, Lightning and submitit look for these
        env |= {
            "SLURM_JOB_ID": run.id,
            "SLURM_JOB_NAME": run.spec.name,
            "SLURM_NNODES": str(len(nodes)),
            "SLURM_JOB_NODELIST": ",".join(nodes),
            "SLURM_RESTART_COUNT": str(attempt.number - 1),
        }
    return env


def _tasks(state: State, run: Run, attempt: Attempt) -> tuple[Task, ...]:
    """One task per node of the gang, ranked in the order of the placement."""
    first = state.nodes[attempt.placement[0].node]
    master = "127.0.0.1" if first.simulated or len(attempt.placement) == 1 else first.hostname
    inside_slurm = "SLURM_JOB_ID" in run.spec.env
    tasks = []
    for rank, part in enumerate(attempt.placement):
        node = state.nodes[part.node]
        gpus = [gpu for gpu in node.gpus if part.gpus >> gpu.index & 1]
        numbers = tuple(gpu.index for gpu in gpus)
        listed = ",".join(map(str, numbers))
        # A job that is kept off the other GPUs' device files counts its own from 0: only the UUID names them surely.
        visible = listed if node.simulated else ",".join(gpu.uuid for gpu in gpus)
        env = {
            "CUDA_VISIBLE_DEVICES": visible,
            "ROTA_GPUS": listed,
            "ROTA_NODE": part.node,
            "ROTA_NODE_RANK": str(rank),
            "ROTA_MASTER_ADDR": master,
        }
        if not inside_slurm:
            env |= {"SLURM_NODEID": str(rank), "SLURM_PROCID": str(rank), "SLURM_GPUS_ON_NODE": str(len(numbers))}
        minors = tuple(gpu.index if gpu.minor is None else gpu.minor for gpu in gpus)
        tasks.append(Task(part.node, numbers, env, minors))
    return tuple(tasks)
