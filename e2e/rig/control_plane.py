"""etcd, API server, controller manager and scheduler: plain processes in node 1's network."""

from __future__ import annotations

from pathlib import Path

from e2e.rig import settings
from e2e.rig.layout import (
    API_PORT,
    AUDIT_LOG,
    CONTROL_PLANE,
    POD_CIDR,
    SERVICE_CIDR,
    STATE,
)
from e2e.rig.pki import Pki
from e2e.rig.processes import start, succeeds, wait_for

_ETCD = "http://127.0.0.1:2379"


def start_all(binaries: Path) -> None:
    """Start them in order; each waits for what it stands on."""
    pki = Pki(STATE / "pki")
    _start(binaries, "etcd", *_etcd())
    _start(binaries, "kube-apiserver", *_api_server(pki))
    ready = ("--kubeconfig", STATE / "admin.kubeconfig", "get", "--raw", "/readyz")
    wait_for("the API server", lambda: succeeds(*_IN_NODE, binaries / "kubectl", *ready))
    _start(binaries, "kube-controller-manager", *_controller_manager(pki))
    _start(binaries, "kube-scheduler", *_scheduler())


_IN_NODE = ("nsenter", f"--net=/run/netns/{CONTROL_PLANE.name}")


def _start(binaries: Path, name: str, *arguments: str) -> None:
    start(name, [*_IN_NODE, binaries / name, *arguments], logs=STATE / "logs")


def _etcd() -> list[str]:
    return [
        f"--data-dir={STATE}/etcd",
        f"--listen-client-urls={_ETCD}",
        f"--advertise-client-urls={_ETCD}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",  # a test cluster's data need not survive the machine
        "--log-level=warn",
    ]


def _api_server(pki: Pki) -> list[str]:
    policy = STATE / "audit-policy.json"
    policy.write_text(settings.audit_policy())
    return [
        f"--advertise-address={CONTROL_PLANE.ip}",
        f"--bind-address={CONTROL_PLANE.ip}",
        f"--secure-port={API_PORT}",
        f"--etcd-servers={_ETCD}",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        # For e2e/restricted-v2.yaml: off by default in 1.35.
        "--feature-gates=MutatingAdmissionPolicy=true",
        "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
        f"--client-ca-file={pki.crt('ca')}",
        f"--tls-cert-file={pki.crt('apiserver')}",
        f"--tls-private-key-file={pki.key('apiserver')}",
        f"--kubelet-certificate-authority={pki.crt('ca')}",
        f"--kubelet-client-certificate={pki.crt('apiserver-kubelet')}",
        f"--kubelet-client-key={pki.key('apiserver-kubelet')}",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki.folder}/service-account.pub",
        f"--service-account-signing-key-file={pki.key('service-account')}",
        f"--requestheader-client-ca-file={pki.crt('front-proxy-ca')}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={pki.crt('front-proxy')}",
        f"--proxy-client-key-file={pki.key('front-proxy')}",
        "--enable-aggregator-routing=true",
        f"--audit-policy-file={policy}",
        f"--audit-log-path={AUDIT_LOG}",
    ]


def _controller_manager(pki: Pki) -> list[str]:
    kubeconfig = STATE / "kube-controller-manager.kubeconfig"
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        f"--cluster-cidr={POD_CIDR}",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        "--allocate-node-cidrs=false",  # the nodes' pod networks are fixed (layout)
        f"--root-ca-file={pki.crt('ca')}",
        f"--service-account-private-key-file={pki.key('service-account')}",
        f"--cluster-signing-cert-file={pki.crt('ca')}",
        f"--cluster-signing-key-file={pki.key('ca')}",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--horizontal-pod-autoscaler-sync-period=5s",
    ]


def _scheduler() -> list[str]:
    kubeconfig = STATE / "kube-scheduler.kubeconfig"
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
    ]
