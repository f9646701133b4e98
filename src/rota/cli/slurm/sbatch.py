"""`sbatch`: a script into the queue."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rota.cli.kept import reservation_id
from rota.cli.slurm import arrays, clock, jobs, output, request, script, values
from rota.cli.slurm.batchopts import HELP, TABLE
from rota.cli.slurm.options import Parsed, UsageError, parse
from rota.cli.slurm.say import guarded, notes, say
from rota.client.errors import NotFound
from rota.client.model.run import Run
from rota.client.sync import Client


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be run, and under which name if none was given."""

    name: str
    argv: tuple[str, ...]


def main(argv: Sequence[str] | None = None) -> int:
    return guarded("sbatch", _sbatch, sys.argv[1:] if argv is None else argv)


def _sbatch(argv: Sequence[str]) -> int:
    parsed = parse(argv, TABLE)
    if parsed.has("help") or parsed.has("version"):
        from rota import __version__

        sys.stdout.write((HELP if parsed.has("help") else f"sbatch of rota {__version__}") + "\n")
        return 0
    work, parsed = _work(parsed)
    if not parsed.has("quiet"):
        notes("sbatch", [*parsed.notes, *filter(None, [request.unsent(parsed)])])
    body = _body(parsed, work)
    array = values.array(parsed.last("array") or "") if parsed.has("array") else None
    with Client.from_env() as client:
        if parsed.has("dependency"):
            body["depends_on"] = _depends_on(client, values.dependencies(parsed.last("dependency") or ""))
        if "grace_seconds" in body and (capped := request.cap_grace(body, client.policy())):
            notes("sbatch", [] if parsed.has("quiet") else [capped])
        if "reservation" in body:
            body["reservation"] = _reservation(client, body["reservation"])
        if parsed.has("test-only"):
            return _test(client, {**body, "argv": _argv(parsed, work, body, {})})
        if array is None:
            body["argv"] = _argv(parsed, work, body, {})
            run = client.submit(held=parsed.has("hold"), **_words(body))
            shown, made = run.id, [run]
            if not parsed.has("quiet"):
                notes("sbatch", [f"note: {text}" for text in run.raw.get("warnings") or ()])
        else:
            shown, made = arrays.submit(
                client,
                array,
                body["name"],
                lambda sweep_id, index: _words(_task(parsed, work, body, arrays.Task(array, sweep_id, index))),
                held=parsed.has("hold"),
            )
        sys.stdout.write(f"{shown}\n" if parsed.has("parsable") else f"Submitted batch job {shown}\n")
        sys.stdout.flush()
        return max(_code(client.wait(run.id)) for run in made) if parsed.has("wait") else 0


def _work(parsed: Parsed) -> tuple[Work, Parsed]:
    """What to run; and the options, those of the script before those of the command line, so that the latter win."""
    if parsed.has("wrap"):
        if parsed.rest:
            raise UsageError("Script arguments not permitted with --wrap option")
        return Work("wrap", ("/bin/sh", "-c", parsed.last("wrap") or "")), parsed
    if parsed.rest:
        path, args = parsed.rest[0], parsed.rest[1:]
        try:
            with open(path, "rb") as file:
                data = file.read(script.MAX_TEXT + 1)
        except OSError as problem:
            raise UsageError(f"Unable to open file {path}: {problem.strerror}") from None
        read = script.read(os.path.basename(path), data)
    else:
        args = ()
        read = script.read("sbatch", sys.stdin.buffer.read(script.MAX_TEXT + 1))
    own = parse(read.options, TABLE)
    if own.rest:
        raise UsageError(f"#SBATCH: {own.rest[0]!r} is no option")
    return Work(read.name, read.argv(args)), Parsed(own.given + parsed.given, parsed.rest, own.notes + parsed.notes)


def _body(parsed: Parsed, work: Work) -> dict[str, Any]:
    if parsed.last("chdir") == "":
        raise UsageError("--chdir is empty; name a directory, or leave it out")
    here = os.getcwd()
    mask = os.umask(0)
    os.umask(mask)
    body = request.shape(parsed)
    body |= {
        "name": parsed.last("job-name") or work.name,
        "workdir": os.path.join(here, parsed.last("chdir") or ""),
        "env": request.environment(parsed, os.environ, here, body),
        "tags": request.tags(parsed),
        "umask": mask,
    }
    body["workdir"] = os.path.normpath(body["workdir"])
    if body.get("nodes", 1) > 1:
        say("sbatch", f"note: the script runs once on each of the {body['nodes']} nodes; SLURM_NODEID tells which")
    return body


def _argv(parsed: Parsed, work: Work, body: dict[str, Any], known: dict[str, str]) -> tuple[str, ...]:
    known = {"x": body["name"], "u": os.environ.get("USER") or str(os.getuid()), **known}
    known = {letter: value.replace("/", "_") for letter, value in known.items()}  # a name must not choose a directory
    stdin, stdout, stderr = (output.fill(parsed.last(name) or "", known) for name in ("input", "output", "error"))
    mode = parsed.last("open-mode") or "truncate"
    if mode not in ("append", "truncate", "a", "t"):
        raise UsageError(f"--open-mode: {mode!r} is neither append nor truncate")
    return output.wrap(work.argv, stdin, stdout, stderr, append=mode.startswith("a"))


def _task(parsed: Parsed, work: Work, body: dict[str, Any], task: arrays.Task) -> dict[str, Any]:
    return {
        **body,
        "argv": _argv(parsed, work, body, {"A": task.sweep_id, "a": str(task.index)}),
        "env": {**body["env"], **task.variables()},
        "tags": [*body["tags"], f"array_task={task.index}"],
    }


def _words(body: dict[str, Any]) -> dict[str, Any]:
    """The body as the arguments of Client.submit."""
    words = {**body, "command": body["argv"], "gpus": body["gpu_count"], "inherit": False}
    return {name: value for name, value in words.items() if name not in ("argv", "gpu_count")}


def _reservation(client: Client, text: str) -> str:
    try:
        return reservation_id(client, text)
    except ValueError as error:
        raise UsageError(f"--reservation: {error}") from None


def _depends_on(client: Client, wanted: Sequence[values.Wanted]) -> list[dict[str, str]]:
    """As the server takes it. An array's id stands for all its tasks; a start that has been needs no waiting."""
    found = []
    for want in wanted:
        try:
            named = jobs.find(client, want.job)
        except NotFound:
            raise UsageError(f"Job dependency problem: {want.job} is not known") from None
        for job in named:
            if want.when != "started":
                found.append({"run_id": job.run.id, "when": want.when})
            elif job.waiting:
                raise UsageError(
                    f"--dependency: {want.job} has not started, and a start cannot be waited for; use afterok"
                )
    return found


def _test(client: Client, body: dict[str, Any]) -> int:
    run = client.submit(dry_run=True, **_words(body))
    when = f" and would start at {clock.stamp(run.eta)}" if run.eta is not None else ""
    say("sbatch", f"Job {run.name} is accepted with {body['gpu_count']} GPUs in partition {jobs.PARTITION}{when}")
    return 0


def _code(run: Run) -> int:
    """As sbatch --wait exits: the job's own code, and 1 for any other bad end."""
    return 0 if run.ok else run.exit_code or 1


if __name__ == "__main__":
    sys.exit(main())
