"""What a start says where a directory does not answer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rota.adapters.backends.leases import LeaseBackend
from rota.adapters.backends.local import LocalBackend
from rota.adapters.heldup import told_of
from rota.adapters.processes import LinuxProcesses
from rota.adapters.samples import FileSamples
from rota.app.later import Later
from tests.app.house import until


def test_it_names_the_directory_and_what_an_admin_does(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []

    def heard() -> bool:
        said.append(capfd.readouterr().err)
        return "".join(said).endswith("\n")

    with told_of(tmp_path, after_s=0.01):
        until(heard, "it is said")
    text = "".join(said)
    assert text.startswith(f"rota: the start has waited 0.01 s for the directory {tmp_path}. ")
    assert "/sys/fs/fuse/connections/N/abort" in text
    assert text.count("\n") == 1


def test_it_says_nothing_of_what_answers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with told_of(tmp_path, after_s=1000.0):
        pass
    assert capfd.readouterr().err == ""


def test_a_start_makes_no_directory_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To make one waits for the lock of the directory above, which an account that can search that can hold."""

    def start() -> None:
        FileSamples(tmp_path / "metrics")
        processes, later = LinuxProcesses(), Later()
        local, leases = LocalBackend(tmp_path, cgroups=False), LeaseBackend(tmp_path, processes, later)
        try:
            local.open(lambda report: None)
            leases.open(lambda report: None)
        finally:
            leases.close()
            local.close()
            later.close()
            processes.close()

    start()
    monkeypatch.setattr(os, "mkdir", None)
    start()
