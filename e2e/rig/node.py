"""One node: containerd, kubelet and kube-proxy in network and mount namespaces of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from e2e.rig import settings
from e2e.rig.layout import NODES, STATE, Node
from e2e.rig.pki import Pki
from e2e.rig.processes import start, succeeds, wait_for
from images.commands import run

# What a node writes outside its folder; memory, so that nothing of it outlives the namespace.
_TMPFS = ("/run", "/var/lib/kubelet", "/var/log", "/var/lib/cni")
_SOCKET = "/run/containerd/containerd.sock"


def main(name: str, binaries: Path) -> None:
    node = next(node for node in NODES if node.name == name)
    run("mount", "--make-rshared", "/")  # kubelet's volumes must reach containerd's containers
    for folder in _TMPFS:
        Path(folder).mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "tmpfs", "tmpfs", folder)
    run("mount", "--make-rshared", "/")
    make_cgroups(node)
    for process in [_containerd(node, binaries), *_kubernetes(node, binaries)]:
        process.wait()


def make_cgroups(node: Node) -> None:
    """The parent of the node's pods in every hierarchy; kubelet does not make it."""
    for hierarchy in _hierarchies():
        folder = hierarchy
        for part in node.cgroup.strip("/").split("/"):
            parent, folder = folder, folder / part
            folder.mkdir(exist_ok=True)
            for inherited in (
                "cpuset.cpus",
                "cpuset.mems",
            ):  # empty in a new group: nothing could run
                if (folder / inherited).exists():
                    (folder / inherited).write_text((parent / inherited).read_text())


def remove_cgroups() -> None:
    """Every group that any node left behind, leaves first."""
    for hierarchy in _hierarchies():
        top = hierarchy / NODES[0].cgroup.strip("/").split("/")[0]
        if top.exists():
            groups = [path for path in top.rglob("*") if path.is_dir()]
            for group in [*sorted(groups, key=lambda path: -len(path.parts)), top]:
                group.rmdir()


def _hierarchies() -> list[Path]:
    return [path for path in Path("/sys/fs/cgroup").iterdir() if path.is_dir()]


def _containerd(node: Node, binaries: Path) -> subprocess.Popen[bytes]:
    (node.folder / "cni").mkdir(parents=True, exist_ok=True)
    (node.folder / "cni" / "10-pods.conflist").write_text(settings.cni(node))
    config = node.folder / "containerd.toml"
    config.write_text(settings.containerd(node))
    process = start(
        f"{node.name}-containerd",
        [binaries / "containerd", "-c", config],
        logs=STATE / "logs",
        environment={**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}"},  # for its shim
    )
    ctr = (binaries / "ctr", "-a", _SOCKET, "-n", "k8s.io")
    wait_for(f"{node.name}'s containerd", lambda: succeeds(*ctr, "version"))
    for archive in sorted((STATE / "images").glob("*.tar")):
        run(*ctr, "images", "import", archive)
    return process


def _kubernetes(node: Node, binaries: Path) -> list[subprocess.Popen[bytes]]:
    kubelet = node.folder / "kubelet.json"
    kubelet.write_text(settings.kubelet(node, pki=Pki(STATE / "pki").folder))
    proxy = node.folder / "kube-proxy.json"
    proxy.write_text(settings.kube_proxy(node, kubeconfig=STATE / "kube-proxy.kubeconfig"))
    return [
        start(f"{node.name}-kubelet", [
            binaries / "kubelet", f"--config={kubelet}",
            f"--kubeconfig={STATE}/{node.name}.kubeconfig",
            f"--node-ip={node.ip}", f"--hostname-override={node.name}",
        ], logs=STATE / "logs"),
        start(f"{node.name}-kube-proxy", [binaries / "kube-proxy", f"--config={proxy}"],
              logs=STATE / "logs"),
    ]  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
