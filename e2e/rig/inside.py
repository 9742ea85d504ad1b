"""The first process of the cluster's namespaces: network, control plane, nodes; then it reaps.

Runs inside `unshare --net --mount --pid`, where it is process 1: its end is the end of everything.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from e2e.rig import control_plane
from e2e.rig.layout import ANYWHERE, HOST_IP, IPV6, NODAD, NODES, PREFIX, STATE
from e2e.rig.processes import start, succeeds, wait_for
from images.commands import run

BRIDGE = "underlay"
UPLINK = "uplink"
SYSCTLS = (
    (
        "net.ipv6.conf.all.forwarding=1",
        "net.ipv6.conf.default.accept_dad=0",  # pods would wait a second for the bridge's address
        "net.bridge.bridge-nf-call-ip6tables=1",
    )
    if IPV6
    else ("net.ipv4.ip_forward=1", "net.bridge.bridge-nf-call-iptables=1")
)


def main(binaries: Path) -> None:
    run("mount", "--make-rshared", "/")
    for folder in ("/run", "/tmp/evenkeel-e2e"):
        Path(folder).mkdir(exist_ok=True)
        run("mount", "-t", "tmpfs", "tmpfs", folder)
    _network()
    control_plane.start_all(binaries)
    for node in NODES:
        command = [sys.executable, "-m", "e2e.rig.node", node.name, str(binaries)]
        start(node.name, ["nsenter", f"--net=/run/netns/{node.name}", "unshare", "--mount",
                          "--propagation", "private", *command], logs=STATE / "logs")  # fmt: skip
    (STATE / "started").touch()
    while True:  # everything that loses its parent becomes ours
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            sys.exit("nothing is left to wait for")


def _network() -> None:
    """A bridge that carries every node and the host; node 1's network is the control plane's too."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "link", "set", BRIDGE, "up")
    wait_for("the link to the host", lambda: succeeds("ip", "link", "show", UPLINK))
    run("ip", "link", "set", UPLINK, "master", BRIDGE, "up")
    for number, node in enumerate(NODES):
        run("ip", "netns", "add", node.name)
        inside = ("ip", "-n", node.name)
        run("ip", "link", "add", f"port{number}", "type", "veth",
            "peer", "name", "eth0", "netns", node.name)  # fmt: skip
        run("ip", "link", "set", f"port{number}", "master", BRIDGE, "up")
        run(*inside, "link", "set", "lo", "up")
        run(*inside, "addr", "add", f"{node.ip}/{PREFIX}", "dev", "eth0", *NODAD)
        run(*inside, "link", "set", "eth0", "up")
        # Components look for a default route to learn which address is theirs.
        run(*inside, "route", "add", ANYWHERE, "via", HOST_IP)
        for other in NODES:
            if other is not node:
                run(*inside, "route", "add", other.pod_cidr, "via", other.ip)
        for sysctl in SYSCTLS:
            run("ip", "netns", "exec", node.name, "sysctl", "-qw", sysctl)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
