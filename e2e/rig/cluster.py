"""The cluster from outside: up, down, status (the verbs of `python -m e2e.rig`).

`E2E_KUBECONFIG` names a cluster that is there already (kind on a laptop, say): then nothing is built.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from e2e.rig import machine, pki
from e2e.rig.components import binaries
from e2e.rig.errors import RigError
from e2e.rig.images import system_archives
from e2e.rig.layout import (
    DNS_IP,
    HOST_IP,
    HOST_LINK,
    KUBECONFIG,
    NODAD,
    NODES,
    PREFIX,
    SOURCE,
    STATE,
    Node,
)
from e2e.rig.node import remove_cgroups
from e2e.rig.processes import succeeds, wait_for
from images.commands import run
from images.errors import BuildError

_PID = STATE / "pid"
_GPUS_PER_NODE = 8


def up() -> None:
    """Bring the cluster up; returns when both nodes are Ready and name service and ingress run."""
    if "E2E_KUBECONFIG" in os.environ:
        return
    if is_up():
        print("the cluster is up")
        return
    machine.check()
    down()
    programs = binaries()
    archives = system_archives(programs)
    _write_state(archives)
    _start(programs)
    try:
        _furnish(programs)
    except BuildError as error:
        raise RigError(f"{error}; the logs are in {STATE}/logs") from error
    print(f"the cluster is up: export KUBECONFIG={KUBECONFIG} PATH={programs}:$PATH")
    print("the product's images: python -m e2e.rig images; more: e2e/README.md")


def down() -> None:
    """End the namespaces' first process and with it all others; remove link, control groups, files."""
    pid = _init_pid()
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        wait_for("the end of the cluster", lambda: not Path(f"/proc/{pid}").exists())
    # The kernel takes the link down with its other end, which may be now.
    succeeds("ip", "link", "del", HOST_LINK)
    wait_for("the end of its link", lambda: not succeeds("ip", "link", "show", HOST_LINK))
    wait_for("the end of its control groups", _cgroups_are_gone, timeout_s=30)
    shutil.rmtree(STATE, ignore_errors=True)


def status() -> None:
    """Raises `RigError` unless the cluster is up."""
    if not is_up():
        raise RigError("the cluster is not up; run `make cluster`")
    print("the cluster is up")


def environment() -> None:
    """Shell assignments for KUBECONFIG and PATH."""
    given = os.environ.get("E2E_KUBECONFIG")
    if given is not None:
        print(f"export KUBECONFIG={given}")
    else:
        print(f"export KUBECONFIG={KUBECONFIG} PATH={binaries()}:$PATH")


def is_up() -> bool:
    """Whether the API server answers and both nodes are Ready."""
    return _init_pid() is not None and _nodes_are_ready(binaries())


def load_images(archives: Sequence[Path], *, nodes: Sequence[Node] = NODES) -> None:
    """Import image archives into nodes that lack them."""
    if _init_pid() is None:
        raise RigError("the cluster is not up; run `make cluster`")
    ctr = binaries() / "ctr"
    for node in nodes:
        socket = f"/proc/{_containerd_pid(node.name)}/root/run/containerd/containerd.sock"
        for path in archives:
            loaded = node.folder / "loaded" / path.name
            if not loaded.exists():
                run(ctr, "-a", socket, "-n", "k8s.io", "images", "import", path)
                loaded.parent.mkdir(exist_ok=True)
                loaded.touch()


def _containerd_pid(node: str) -> int:
    config = str(STATE / node / "containerd.toml")
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        words = path.read_bytes().decode(errors="replace").split("\0")
        if Path(words[0]).name == "containerd" and config in words:
            return int(path.parent.name)
    raise RigError(f"{node}'s containerd does not run")


def _write_state(archives: Sequence[Path]) -> None:
    (STATE / "images").mkdir(parents=True)
    for path in archives:
        (STATE / "images" / path.name).symlink_to(path)
    certificates = pki.create(STATE / "pki")
    pki.kubeconfig(certificates, "admin", KUBECONFIG)
    names = ["kube-controller-manager", "kube-scheduler", "kube-proxy"]
    for name in [*names, *(node.name for node in NODES)]:
        pki.kubeconfig(certificates, name, STATE / f"{name}.kubeconfig")


def _start(programs: Path) -> None:
    """Make the namespaces and give them their link to this host."""
    (STATE / "logs").mkdir()
    command = ["unshare", "--net", "--mount", "--propagation", "private", "--pid", "--fork",
               "--mount-proc", "--kill-child",
               sys.executable, "-m", "e2e.rig.inside", str(programs)]  # fmt: skip
    with (STATE / "logs" / "inside.log").open("ab") as log:
        outer = subprocess.Popen(
            command,
            cwd=SOURCE.parents[1],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
    wait_for("the namespaces", lambda: bool(children.read_text().split()))
    pid = children.read_text().split()[0]
    _PID.write_text(pid)
    run("ip", "link", "add", HOST_LINK, "type", "veth", "peer", "name", "uplink", "netns", pid)
    run("ip", "addr", "add", f"{HOST_IP}/{PREFIX}", "dev", HOST_LINK, *NODAD)
    run("ip", "link", "set", HOST_LINK, "up")


def _furnish(programs: Path) -> None:
    """Start fake GPUs, name service and ingress; wait until all of them run."""
    kubectl = (programs / "kubectl", f"--kubeconfig={KUBECONFIG}")
    wait_for("ready nodes", lambda: _nodes_are_ready(programs), timeout_s=120)
    capacity = f'{{"status": {{"capacity": {{"nvidia.com/gpu": "{_GPUS_PER_NODE}"}}}}}}'
    for node in NODES:
        run(*kubectl, "patch", "node", node.name, "--subresource=status", "-p", capacity)
    addons = [path.read_text() for path in sorted((SOURCE / "addons").glob("*.yaml"))]
    objects = "---\n".join(addons).replace("DNS_IP", DNS_IP)
    run(*kubectl, "apply", "--server-side", "-f", "-", stdin=objects)
    run(*kubectl, "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=90s")
    run(*kubectl, "-n", "ingress", "rollout", "status", "daemonset/traefik", "--timeout=90s")


def _nodes_are_ready(programs: Path) -> bool:
    path = "{.items[*].status.conditions[?(@.type=='Ready')].status}"
    done = subprocess.run(
        [programs / "kubectl", f"--kubeconfig={KUBECONFIG}", "--request-timeout=5s",
         "get", "nodes", "-o", f"jsonpath={path}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode == 0 and done.stdout.split() == ["True"] * len(NODES)


def _init_pid() -> int | None:
    """The first process of the namespaces, if it lives and is ours."""
    try:
        pid = int(_PID.read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ValueError):
        return None
    return pid if b"e2e.rig.inside" in words else None


def _cgroups_are_gone() -> bool:
    try:
        remove_cgroups()
    except OSError:  # a process of it is still ending
        return False
    return True
