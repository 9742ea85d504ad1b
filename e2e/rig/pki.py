"""Certificates and kubeconfigs of the cluster, by the openssl command. Valid for a month, made anew with `up`."""

from __future__ import annotations

import base64
import subprocess
from dataclasses import dataclass
from pathlib import Path

from e2e.rig.errors import RigError
from e2e.rig.layout import API_SERVER, API_SERVICE_IP, HOST_IP, NODES


@dataclass(frozen=True, slots=True)
class Pki:
    """A folder of certificates: `<name>.crt` and `<name>.key`."""

    folder: Path

    def crt(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"


def create(folder: Path) -> Pki:
    """Two authorities, the servers' and the clients' certificates, and the service-account key."""
    folder.mkdir(parents=True)
    pki = Pki(folder)
    for authority in ("ca", "front-proxy-ca"):
        _openssl(
            "req", "-x509", "-nodes", "-days", "30", "-subj", f"/CN=evenkeel-e2e-{authority}",
            *_new_key(pki.key(authority)), "-out", pki.crt(authority),
        )  # fmt: skip
    names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
    ips = (API_SERVICE_IP, "127.0.0.1", HOST_IP, *(node.ip for node in NODES))
    issue(pki, "apiserver", "/CN=kube-apiserver", names=names, ips=ips)
    issue(pki, "apiserver-kubelet", "/O=system:masters/CN=apiserver-kubelet")
    issue(pki, "front-proxy", "/CN=front-proxy-client", authority="front-proxy-ca")
    issue(pki, "admin", "/O=system:masters/CN=admin")
    for component in ("kube-controller-manager", "kube-scheduler", "kube-proxy"):
        issue(pki, component, f"/CN=system:{component}")
    for node in NODES:
        subject = f"/O=system:nodes/CN=system:node:{node.name}"
        issue(pki, node.name, subject, names=(node.name,), ips=(node.ip,))
    _openssl("genrsa", "-out", pki.key("service-account"), "2048")
    public = pki.folder / "service-account.pub"
    _openssl("rsa", "-in", pki.key("service-account"), "-pubout", "-out", public)
    return pki


def kubeconfig(pki: Pki, name: str, target: Path) -> Path:
    """A kubeconfig that carries the certificate `name`; returns `target`."""

    def data(path: Path) -> str:
        return base64.b64encode(path.read_bytes()).decode()

    target.write_text(
        f"""apiVersion: v1
kind: Config
clusters:
- name: evenkeel-e2e
  cluster: {{server: "{API_SERVER}", certificate-authority-data: {data(pki.crt("ca"))}}}
users:
- name: {name}
  user: {{client-certificate-data: {data(pki.crt(name))}, client-key-data: {data(pki.key(name))}}}
contexts:
- name: evenkeel-e2e
  context: {{cluster: evenkeel-e2e, user: {name}}}
current-context: evenkeel-e2e
"""
    )
    target.chmod(0o600)
    return target


def issue(
    pki: Pki,
    name: str,
    subject: str,
    *,
    names: tuple[str, ...] = (),
    ips: tuple[str, ...] = (),
    authority: str = "ca",
) -> None:
    """A certificate for clients and servers; replaces that of the same name."""
    alternatives = [f"DNS:{n}" for n in names] + [f"IP:{ip}" for ip in ips]
    extensions = ["extendedKeyUsage=clientAuth,serverAuth", "keyUsage=digitalSignature"]
    if alternatives:
        extensions.append(f"subjectAltName={','.join(alternatives)}")
    _openssl(
        "req", "-x509", "-nodes", "-days", "30", "-subj", subject,
        "-CA", pki.crt(authority), "-CAkey", pki.key(authority),
        *[argument for extension in extensions for argument in ("-addext", extension)],
        "-addext", "basicConstraints=critical,CA:FALSE",
        *_new_key(pki.key(name)), "-out", pki.crt(name),
    )  # fmt: skip


def _new_key(path: Path) -> tuple[str | Path, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-keyout", path)


def _openssl(*arguments: str | Path) -> None:
    command = ["openssl", *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RigError(f"{' '.join(command[:2])} failed: {run.stderr.strip()}")
