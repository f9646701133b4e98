"""`srun`: GPUs for a command of this terminal.

Two families of users type it. Those of the lease door: `srun [-n|--num-gpus N] command`, `srun status`, `srun jobs`.
Those of Slurm: `srun -G 2 --pty bash`, and `srun python train.py` inside a batch job, where the GPUs are there already
and the command simply runs. `-n` means GPUs only where no option of Slurm's asks for them and no job is around it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence

from rota.cli.slurm import values
from rota.cli.slurm.options import Option, Parsed, Takes, UsageError, parse
from rota.cli.slurm.say import error, guarded, notes

HELP = """\
usage: srun [-n|--num-gpus N] command...      wait for N GPUs (default 1), then become the command
       srun [Slurm's options] command...      the same with -G, --gpus or --gres; inside a job: just run it
       srun status | jobs                     the server and what it has given out

  -G, --gpus=N  --gres=gpu:N   GPUs            -D, --chdir=DIR    where to run
  -J, --job-name=NAME          name            --export=...       ALL, NONE, NAME, NAME=VALUE
  -I, --immediate[=SECONDS]    do not wait     -o -e -i FILE      output, error, input
  -N, -n                       nodes, tasks    --pty              accepted: the terminal is always the command's

Everything after the first word that is no option belongs to the command. GPUSCHED_URL names another server."""

_LEASE = "a lease holds GPUs and nothing else"
_ONE = "Rota has one queue"
_HERE = "a lease is of this machine; use sbatch to run elsewhere"
TABLE = (
    Option("help", "h", Takes.NOTHING),
    Option("version", "V", Takes.NOTHING),
    Option("num-gpus"),
    Option("ntasks", "n"),
    Option("gpus", "G"),
    Option("gres"),
    Option("gpus-per-node"),
    Option("gpus-per-task"),
    Option("nodes", "N"),
    Option("ntasks-per-node"),
    Option("job-name", "J"),
    Option("chdir", "D"),
    Option("export"),
    Option("output", "o"),
    Option("error", "e"),
    Option("input", "i"),
    Option("open-mode"),
    Option("immediate", "I", Takes.PERHAPS),
    Option("pty", "", Takes.PERHAPS),
    Option("unbuffered", "u", Takes.NOTHING),
    Option("quiet", "Q", Takes.NOTHING),
    Option("verbose", "v", Takes.NOTHING),
    Option("kill-on-bad-exit", "K", Takes.PERHAPS),
    Option("overlap", "", Takes.NOTHING),
    Option("exact", "", Takes.NOTHING),
    Option("jobid"),
    Option("cpus-per-task", "c", note=_LEASE),
    Option("mem", note=_LEASE),
    Option("mem-per-cpu", note=_LEASE),
    Option("mem-per-gpu", note=_LEASE),
    Option("time", "t", note=f"{_LEASE}; `timeout` ends a command in time"),
    Option("signal", note=f"{_LEASE}, and so no time limit"),
    Option("partition", "p", note=_ONE),
    Option("account", "A", note=_ONE),
    Option("qos", "q", note=_ONE),
    Option("label", "l", Takes.NOTHING, note="there is one task"),
    Option("wait", "W", note="there is one task"),
    Option("exclusive", "", Takes.PERHAPS, note="a GPU is never shared"),
    Option("mpi", note="no MPI is set up"),
    Option("cpu-bind", note="CPUs are not bound"),
    Option("gpu-bind", note="the command sees exactly its GPUs"),
    Option("distribution", "m", note="there is one task"),
    Option("comment", note="there is no place for it"),
    Option("dependency", "d", refusal="a lease waits for GPUs only; use sbatch"),
    Option("nodelist", "w", refusal=_HERE),
    Option("exclude", "x", refusal=_HERE),
    Option("constraint", "C", refusal=_HERE),
    Option("array", "a", refusal="use sbatch"),
    Option("test-only", "", Takes.NOTHING, refusal="use sbatch --test-only"),
)
_ASKS = ("gpus", "gres", "gpus-per-node", "gpus-per-task")


def main(argv: Sequence[str] | None = None) -> int:
    return guarded("srun", _srun, sys.argv[1:] if argv is None else argv)


def _srun(argv: Sequence[str]) -> int:
    if list(argv) in (["status"], ["jobs"]):
        from rota.cli.lease.show import show

        return show("srun", argv[0])
    parsed = parse(argv, TABLE)
    if parsed.has("help") or parsed.has("version"):
        from rota import __version__

        sys.stdout.write((HELP if parsed.has("help") else f"srun of rota {__version__}") + "\n")
        return 0
    if not parsed.rest:
        raise UsageError("no command given to execute")
    inside = os.environ.get("ROTA_JOB_ID") or os.environ.get("SLURM_JOB_ID") or ""
    gpus = _gpus(parsed, inside=bool(inside))
    env = _environment(parsed, os.environ)
    if not parsed.has("quiet") and not inside:
        notes("srun", parsed.notes)
    if parsed.has("chdir"):
        try:
            os.chdir(parsed.last("chdir") or "")
        except OSError as problem:
            return error("srun", f"chdir: {parsed.last('chdir')}: {problem.strerror}")
    prepare = _files(parsed, env)
    from rota.cli.lease.run import run, take_over

    if inside:
        return take_over("srun", parsed.rest, env, inside, prepare)
    name = parsed.last("job-name") or ""
    return run("srun", parsed.rest, gpus, timeout_s=_patience_s(parsed), name=name, env=env, prepare=prepare)


def _gpus(parsed: Parsed, *, inside: bool) -> int:
    """How many to ask for; and no more tasks or nodes than this srun can start, which is one here."""
    tasks = values.number("ntasks", parsed.last("ntasks") or "1")
    nodes = values.number("nodes", (parsed.last("nodes") or "1").partition("-")[0], 1)
    alone = not inside and not any(parsed.has(name) for name in _ASKS)
    if alone:
        asked = [given for given in parsed.given if given.name in ("num-gpus", "ntasks")]
        if nodes > 1:
            raise UsageError(f"--nodes: {_HERE}")
        return values.number(asked[-1].name, asked[-1].value) if asked else 1
    around = values.number("nodes", os.environ.get("ROTA_NODES") or "1") if inside else 1
    if tasks not in (0, 1, around) or nodes not in (1, around) or parsed.last("ntasks-per-node") not in (None, "1"):
        raise UsageError("srun starts one task for each node of the job; use torchrun --nproc-per-node=N for more")
    if inside:
        return 0
    found = [values.gpus(name, parsed.last(name) or "") for name in _ASKS if name != "gres" and parsed.has(name)]
    if parsed.has("gres"):
        found.append(values.gres(parsed.last("gres") or "") or values.Gpus(0))
    if any(gpus.type for gpus in found):
        raise UsageError("a lease takes what is free on this machine; use sbatch to choose a type of GPU")
    return found[0].count


def _environment(parsed: Parsed, env: Mapping[str, str]) -> dict[str, str]:
    """What Rota or Slurm set stays in any case: the command is inside their job."""
    if not parsed.has("export") or parsed.last("export") == "ALL":
        return dict(env)
    from rota.cli.slurm.request import variables

    kept = {name: value for name, value in env.items() if name.startswith(("ROTA_", "SLURM_", "CUDA_"))}
    own = dict(env) if (parsed.last("export") or "").split(",")[0] == "ALL" else kept
    return {**own, **variables(parsed, env)}


def _patience_s(parsed: Parsed) -> float | None:
    if not parsed.has("immediate"):
        return None
    return float(values.number("immediate", parsed.last("immediate") or "1"))


def _files(parsed: Parsed, env: Mapping[str, str]) -> Callable[[str], None] | None:
    """What opens -i, -o and -e as 0, 1 and 2, right before the command takes over: the names may hold the job's id."""
    wanted = [parsed.last(name) or "" for name in ("input", "output", "error")]
    if not any(wanted):
        return None
    how = os.O_APPEND if parsed.last("open-mode") in ("append", "a") else os.O_TRUNC

    def prepare(job_id: str) -> None:
        known = {"j": job_id, "J": job_id, "A": job_id, "u": env.get("USER", ""), "x": parsed.last("job-name") or ""}
        known |= {"N": os.uname().nodename, "n": env.get("ROTA_NODE_RANK", "0"), "t": env.get("ROTA_NODE_RANK", "0")}
        from rota.cli.slurm.output import fill

        stdin, stdout, stderr = (fill(name, known).replace("%%", "%") for name in wanted)
        if stdin:
            _open_as(0, stdin, os.O_RDONLY)
        if stdout:
            _open_as(1, stdout, os.O_WRONLY | os.O_CREAT | how)
        if stderr and stderr != stdout:
            _open_as(2, stderr, os.O_WRONLY | os.O_CREAT | how)
        elif stdout:
            os.dup2(1, 2)

    return prepare


def _open_as(number: int, path: str, flags: int) -> None:
    opened = os.open(path, flags, 0o666)
    os.dup2(opened, number)
    os.close(opened)


if __name__ == "__main__":
    sys.exit(main())
