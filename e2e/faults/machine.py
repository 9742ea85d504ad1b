"""Faults of the rig's machines: processes that are killed and started again, links that are cut, clocks, disks.

Only for the cluster of `make cluster`, whose processes run in namespaces of this machine.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from e2e.rig.components import binaries
from e2e.rig.layout import API_PORT, NODES, STATE, Node
from e2e.scraping import free_port, host
from images.commands import run

_INIT: Final = STATE / "pid"
ENDS_S: Final = 60.0
"""For the end of a process after kill -9."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the cluster, known by a word of its command line."""

    name: str
    word: str
    neighbour: str
    """A word of a process in the same namespaces, which is never killed."""

    def kill(self) -> list[str]:
        """kill -9. Returns its command line, to start it again."""
        pid = _pid(self.word)
        words = _words(pid)
        watch = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(watch, signal.SIGKILL)
            # Its command line is gone before its sockets are closed: a new process could not listen yet.
            ended, _, _ = select.select([watch], [], [], ENDS_S)
        finally:
            os.close(watch)
        assert ended, f"{self.name} still runs {ENDS_S:.0f} s after kill -9"
        return words

    def start(self, words: list[str]) -> None:
        """Start it again, in the same namespaces, with the same log."""
        with (STATE / "logs" / f"{self.name}.log").open("ab") as log:
            subprocess.run(
                ["setsid", "--fork", "nsenter", f"--target={_pid(self.neighbour)}",
                 "--net", "--mount", "--pid", *words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True,
            )  # fmt: skip


def _on(node: Node, name: str, word: str) -> Process:
    return Process(f"{node.name}-{name}", word, f"--config={node.folder}/kube-proxy.json")


ONE, TWO = NODES
_SCHEDULER: Final = f"--kubeconfig={STATE}/kube-scheduler.kubeconfig"
KUBELET: Final = _on(TWO, "kubelet", f"--hostname-override={TWO.name}")
CONTAINERD: Final = _on(TWO, "containerd", f"{TWO.folder}/containerd.toml")
API: Final = Process("kube-apiserver", f"--secure-port={API_PORT}", _SCHEDULER)
ETCD: Final = Process("etcd", f"--data-dir={STATE}/etcd", _SCHEDULER)


def _words(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rstrip("\0").split("\0")


def _pids(word: str) -> list[int]:
    """Processes with this word, without the `nsenter` that started one of them."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        words = _words(int(path.name))
        if word in words and words[0] != "nsenter":
            found.append(int(path.name))
    return found


def _pid(word: str) -> int:
    found = _pids(word)
    assert len(found) == 1, f"{len(found)} processes have {word}"
    return found[0]


def files_of(node: Node) -> Path:
    """The root of a node's files, as this machine sees it."""
    return Path(f"/proc/{_pid(f'--config={node.folder}/kube-proxy.json')}/root")


def inside(node: Node, *command: str) -> str:
    """Run a program in a node's namespaces."""
    target = _pid(f"--config={node.folder}/kube-proxy.json")
    return run("nsenter", f"--target={target}", "--net", "--mount", "--pid", *command)


def containers(node: Node, *command: str) -> str:
    """`ctr` of a node."""
    socket_of = files_of(node) / "run/containerd/containerd.sock"
    return run(binaries() / "ctr", "-a", socket_of, "-n", "k8s.io", *command)


def kill(pod: Any) -> str:
    """kill -9 of a pod's process. Returns the pod's name."""
    (container,) = pod["status"]["containerStatuses"]
    node = next(one for one in NODES if one.name == pod["spec"]["nodeName"])
    identity = container["containerID"].removeprefix("containerd://")
    containers(node, "tasks", "kill", "--signal", "SIGKILL", identity)
    return str(pod["metadata"]["name"])


def link(node: Node, state: str) -> None:
    """Set a node's link `down` or `up`: its pods still reach each other, and nothing else."""
    port = f"port{NODES.index(node)}"
    run("nsenter", f"--target={_INIT.read_text()}", "--net", "ip", "link", "set", port, state)


CLOCK: Final = "/run/evenkeel-clock"
"""On each node, the folder whose file `offset` sets the clock of its pods (libfaketime)."""


def set_clock(node: Node, offset_s: int) -> None:
    """The wall clock of the node's pods, from now on. The monotonic clock does not jump."""
    folder = files_of(node) / CLOCK.lstrip("/")
    folder.mkdir(exist_ok=True)
    (folder / "new").write_text(f"{offset_s:+d}s\n")
    (folder / "new").rename(folder / "offset")


def with_clock() -> dict[str, object]:
    """Fields of a pod's spec with which its processes read that clock."""
    library = next(iter(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)
    if library is None:
        pytest.skip("no libfaketime here (make tools installs it)")
    environment = {
        "LD_PRELOAD": f"/faketime/{library.name}",
        "FAKETIME_TIMESTAMP_FILE": "/clock/offset",
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    folders = {"faketime": str(library.parent), "clock": CLOCK}
    return {
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "volumes": [
            {"name": name, "hostPath": {"path": path, "type": "Directory"}}
            for name, path in folders.items()
        ],
        "volumeMounts": [
            {"name": name, "mountPath": f"/{name}", "readOnly": True} for name in folders
        ],
    }


DISK: Final = "/run/evenkeel-disk"
"""On node 1, a file system of two MiB."""


def make_disk() -> None:
    """Mount it; every user may write."""
    inside(ONE, "mkdir", "-p", DISK)
    inside(ONE, "mount", "-t", "tmpfs", "-o", "size=2m,mode=1777", "tmpfs", DISK)


def fill_disk() -> None:
    """Until nothing fits."""
    target = files_of(ONE) / DISK.lstrip("/") / "filler"
    handle = os.open(target, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(handle, b"\0" * 4096)
    except OSError:
        pass  # no space left
    finally:
        os.close(handle)


def free_disk() -> None:
    (files_of(ONE) / DISK.lstrip("/") / "filler").unlink()


@dataclass(slots=True)
class Redis:
    """A Redis server of this machine, which pods reach."""

    folder: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def url(self) -> str:
        return f"redis://{host()}:{self.port}/0"

    def start(self) -> None:
        """With an empty memory."""
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("no redis-server: `make tools` installs it on Debian")
        self.port = self.port or free_port()
        command = [program, "--port", str(self.port), "--bind", host(), "--protected-mode", "no",
                   "--save", "", "--dir", str(self.folder)]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def sleep_until(ends_s: float) -> None:
    """Of the monotonic clock."""
    time.sleep(max(0.0, ends_s - time.monotonic()))
