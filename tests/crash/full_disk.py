"""Run inside a mount namespace whose data directory is a small tmpfs: fills it, frees it, and says what happened."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from rota.app.commands import Submit
from rota.app.errors import Unavailable
from rota.app.service import Service
from rota.core.check import check
from tests.crash.scripts import ME, job, server, until


def main(disk: str, marks: str) -> None:
    ballast, gate = Path(disk) / "ballast", Path(marks).with_name("gate")
    ballast.write_bytes(b"\0" * (3 << 20))
    accepted: list[str] = []
    facts: dict[str, object] = {}
    with server(f"{disk}/data", disk_floor_mb=0) as service:
        steady = service.do(
            ME, Submit(job(marks, f"; until test -e {gate}; do sleep 0.1; done; echo still here", gpus=8))
        )
        accepted.append(steady.id)
        until(lambda: service.run(steady.id).state == "running")
        held = Submit(job(marks), held=True)
        for _ in range(20_000):
            try:
                accepted.append(service.do(ME, held).id)
            except Unavailable as refusal:
                facts["refused"] = str(refusal)
                break
        facts["read while full"] = service.run(steady.id).id == steady.id
        facts["refused again"] = _refused(service, held)
        ballast.unlink()
        until(lambda: not _refused(service, held), 60)
        gate.touch()  # only now: while the disk is full a job's words are lost as well
        again = service.do(ME, Submit(job(marks)))
        facts["after"] = str(service.wait(again.id, 60).state)
        facts["steady"] = str(service.wait(steady.id, 60).state)
        facts["steady said"] = service.log(steady.id).content.decode()
        facts["lost"] = [run_id for run_id in accepted if service._loop.store.run(run_id) is None]
        facts["check"] = service.ask(lambda state, now: check(state))
        facts["accepted"] = len(accepted)
    print(json.dumps(facts))


def _refused(service: Service, held: Submit) -> bool:
    try:
        service.do(ME, held)
    except Unavailable:
        time.sleep(0.1)
        return True
    return False


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    main(*sys.argv[1:])
