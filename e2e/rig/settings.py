"""Configuration files of the components, as text (no I/O).

Each line that differs from a default because of this kind of machine says why.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from e2e.rig.layout import ANYWHERE, DNS_IP, IPV6, POD_CIDR, Node, in_url

PAUSE_IMAGE: Final = "evenkeel.dev/e2e/pause:1"
COREDNS_IMAGE: Final = "evenkeel.dev/e2e/coredns:1"
TRAEFIK_IMAGE: Final = "evenkeel.dev/e2e/traefik:1"


def containerd(node: Node) -> str:
    """containerd 2.2 and newer, configuration version 3."""
    return f"""version = 3
root = "{node.folder}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs",
  "io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp"]

[grpc]
  address = "/run/containerd/containerd.sock"

[plugins."io.containerd.cri.v1.images"]
  pinned_images.sandbox = "{PAUSE_IMAGE}"
  # Registries without TLS: containerd reads a folder per registry at each pull.
  registry.config_path = "{node.folder}/certs.d"

[plugins."io.containerd.cri.v1.runtime"]
  # Without CAP_SYS_RESOURCE a negative oom_score_adj is refused and no sandbox starts.
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "{node.folder}/cni"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    options.SystemdCgroup = false
"""


def cni(node: Node) -> str:
    """A bridge per node; pods of other nodes are reached by routes."""
    return json.dumps(
        {
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": True,
                    "ipMasq": True,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": "/run/cni-ipam",
                        "ranges": [[{"subnet": node.pod_cidr}]],
                        "routes": [{"dst": ANYWHERE}],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        },
        indent=2,
    )


def kubelet(node: Node, *, pki: Path) -> str:
    """KubeletConfiguration."""
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": node.ip,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",  # process 1 is not systemd
            "cgroupRoot": node.cgroup,
            "clusterDNS": [DNS_IP],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "failCgroupV1": False,  # the machine's control groups are hybrid
            "podLogsDir": "/var/log/pods",
            "resolvConf": "",  # nothing outside the cluster can be resolved
            "tlsCertFile": str(pki / f"{node.name}.crt"),
            "tlsPrivateKeyFile": str(pki / f"{node.name}.key"),
            "volumePluginDir": "/run/kubelet-plugins",
            # Shares of a disk that this cluster does not have to itself: a machine that is 85 % full is no reason
            # to evict pods, or to remove images that cannot be pulled again.
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1Gi",
                "imagefs.available": "1Gi",
            },
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "4s",
            "syncFrequency": "10s",
        },
        indent=2,
    )


def kube_proxy(node: Node, *, kubeconfig: Path) -> str:
    """KubeProxyConfiguration."""
    return json.dumps(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "hostnameOverride": node.name,
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "bindAddress": "::" if IPV6 else "0.0.0.0",  # the family, if the node is not known yet
            "clusterCIDR": POD_CIDR,
            # The conntrack sysctls are read-only in a network namespace.
            "conntrack": {
                "maxPerCore": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
            "metricsBindAddress": "127.0.0.1:10249",
            "healthzBindAddress": f"{in_url(node.ip)}:10256",
        },
        indent=2,
    )


def audit_policy() -> str:
    """Audit policy: user and resource of each request, without bodies. Tests count an operator's writes by it."""
    return json.dumps(
        {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [
                {"level": "None", "users": ["system:apiserver", "system:kube-scheduler"]},
                {"level": "None", "userGroups": ["system:nodes"]},
                {"level": "Metadata"},
            ],
        }
    )
