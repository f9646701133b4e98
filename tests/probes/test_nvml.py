"""The NVML probe against a stand-in library that pynvml loads as if it were the driver's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler for the NVML stand-in")

ASK = """
import json, sys
from rota.adapters.probes import nvml
from rota.core import codec
nvml.TIMEOUT_S = 60.0
try:
    probe = nvml.NvmlProbe()
except nvml.NoGpus as error:
    print(json.dumps(str(error)), flush=True)
    sys.exit()
for line in sys.stdin:
    nvml.TIMEOUT_S = float(line)
    print(json.dumps([codec.encode(node) for node in probe.nodes()]), flush=True)
"""


class Machine:
    """A process that sees the stand-in's GPUs."""

    def __init__(self, library: Path, state: Path) -> None:
        self.state = state
        env = {**os.environ, "LD_LIBRARY_PATH": str(library.parent), "NVML_STATE": str(state)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", ASK], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def look(self, state: str, within_s: float = 60.0) -> Any:
        self.state.write_text(state)
        assert self.process.stdin is not None
        self.process.stdin.write(f"{within_s}\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    made = tmp_path / "lib" / "libnvidia-ml.so.1"
    made.parent.mkdir()
    source = Path(__file__).parent / "nvml_stand_in.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    return made


@pytest.fixture
def machine(library: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    state = tmp_path / "state"
    state.write_text(getattr(request, "param", "8 -1 0"))
    made = Machine(library, state)
    yield made
    made.close()


def test_eight_gpus_with_their_names_and_memory(machine: Machine) -> None:
    [node] = machine.look("8 -1 0")
    assert [gpu["index"] for gpu in node["gpus"]] == list(range(8))
    assert node["gpus"][3]["uuid"] == "GPU-stand-in-3"
    assert [gpu["minor"] for gpu in node["gpus"]] == [7, 6, 5, 4, 3, 2, 1, 0], "not every machine counts alike"
    assert {(gpu["type"], gpu["memory_gb"]) for gpu in node["gpus"]} == {("NVIDIA H100 80GB HBM3", 80.0)}
    assert node["cpus"] == os.cpu_count() and not node.get("simulated")


def test_a_gpu_that_falls_off_the_bus_is_unfit_and_keeps_its_number(machine: Machine) -> None:
    machine.look("8 -1 0")
    [node] = machine.look("8 5 0")
    assert [gpu["index"] for gpu in node["gpus"] if gpu.get("healthy") is False] == [5]
    assert node["gpus"][5]["why"] == "GPU is lost" and node["gpus"][5]["uuid"] == "GPU-stand-in-5"
    [node] = machine.look("6 -1 0")  # the driver shows fewer: those that vanished are unfit, not forgotten
    assert [gpu["index"] for gpu in node["gpus"] if gpu.get("healthy") is False] == [6, 7]
    [node] = machine.look("8 -1 0")
    assert all(gpu.get("healthy", True) for gpu in node["gpus"])


def test_a_driver_that_hangs_makes_the_gpus_unfit_until_it_answers(machine: Machine) -> None:
    machine.look("2 -1 0")
    [node] = machine.look("2 -1 1500", within_s=0.2)
    assert [gpu["why"] for gpu in node["gpus"]] == ["NVML does not answer"] * 2
    machine.state.write_text("2 -1 0")
    for _ in range(200):
        [node] = machine.look("2 -1 0")
        if all(gpu.get("healthy", True) for gpu in node["gpus"]):
            break
    else:
        pytest.fail("it never recovers")


@pytest.mark.parametrize("machine", ["0 -1 0"], indirect=True)
def test_no_gpu_is_said_plainly(machine: Machine) -> None:
    assert machine.answer() == "the driver shows no GPU"
