"""Workers that share one chart, on a machine whose kubectl and helm only write down what they are asked."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from e2e import installed, sharing
from e2e.kubectl import Kubectl
from e2e.sharing import Turn, share

ANEW = ["uninstall", "install"]
PROGRAM = """#!/bin/sh
echo "$(basename "$0") $*" >> {log}
case "$*" in *" list "*) echo evenkeel;; esac
"""


class Machine:
    """Its programs, and what they were asked."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "log"
        self._log.touch()
        (folder / "bin").mkdir()
        for name in ("kubectl", "helm"):
            (folder / "bin" / name).write_text(PROGRAM.format(log=self._log))
            (folder / "bin" / name).chmod(0o755)
        self.kubectl = Kubectl(str(folder / "bin" / "kubectl"), folder / "kubeconfig")

    @property
    def asked(self) -> list[str]:
        """The verbs of helm that change something, in the order in which they came."""
        lines = self._log.read_text().splitlines()
        verbs = ("install", "uninstall")
        return [verb for line in lines for verb in verbs if f" {verb} evenkeel" in line]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(installed, "CACHE", tmp_path)
    monkeypatch.setattr(sharing, "_TURN", tmp_path / "turn")
    monkeypatch.setattr(sharing, "_SHARED", tmp_path / "shared")
    monkeypatch.setattr(sharing, "definitions", dict[str, Path])
    monkeypatch.setenv("E2E_REGISTRY", "registry.test")
    return Machine(tmp_path)


def test_workers_install_once_and_the_last_one_removes_it(machine: Machine) -> None:
    turns = [Turn(machine.kubectl) for _ in range(3)]
    for turn in turns:
        turn.take(alone=False)
        share(machine.kubectl)
    for turn in turns:
        assert machine.asked == ANEW
        turn.leave()
    assert machine.asked == [*ANEW, "uninstall"]


def test_a_worker_that_is_alone_waits_for_all_others_and_finds_no_chart(machine: Machine) -> None:
    first, second, alone = (Turn(machine.kubectl) for _ in range(3))
    for turn in (first, second, alone):
        turn.take(alone=False)
    share(machine.kubectl)
    waiting = threading.Thread(target=alone.take, kwargs={"alone": True})
    waiting.start()
    first.leave()
    waiting.join(timeout=0.2)
    assert waiting.is_alive()
    second.leave()
    waiting.join(timeout=30)
    assert not waiting.is_alive()
    assert machine.asked == [*ANEW, "uninstall"]
    alone.leave()
    assert machine.asked == [*ANEW, "uninstall"]


def test_what_a_former_run_left_is_installed_anew(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in ("first", "second"):
        monkeypatch.setattr(sharing, "_RUN", run)
        share(machine.kubectl)
    assert machine.asked == [*ANEW, *ANEW]
