"""kubectl as a function."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from e2e.reading import NotReadable, ReadError, reader
from e2e.rig.layout import CACHE, KUBECONFIG


class KubectlError(AssertionError):
    """kubectl failed; the text is its error output."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """One cluster."""

    program: str
    kubeconfig: Path

    def command(self, *arguments: str | Path) -> list[str]:
        return [self.program, f"--kubeconfig={self.kubeconfig}", *map(str, arguments)]

    def __call__(self, *arguments: str | Path, stdin: str | None = None) -> str:
        """Its output; raises `KubectlError`."""
        done = subprocess.run(
            self.command(*arguments), input=stdin, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise KubectlError(f"kubectl {' '.join(map(str, arguments))}: {done.stderr.strip()}")
        return done.stdout

    def get(self, *arguments: str) -> Any:
        """`kubectl get -o json`."""
        try:
            return reader(self.kubeconfig).get(arguments)
        except ReadError as error:
            raise KubectlError(f"get {' '.join(arguments)}: {error}") from error
        except (NotReadable, httpx.TransportError):
            return json.loads(self("get", *arguments, "-o", "json"))


def find_cluster() -> Kubectl | None:
    """The cluster of `E2E_KUBECONFIG` or of `make cluster`, where its API server answers."""
    given = os.environ.get("E2E_KUBECONFIG")
    kubeconfig = KUBECONFIG if given is None else Path(given)
    built = CACHE / "bin" / "kubectl"
    program = str(built) if built.exists() else shutil.which("kubectl")
    if program is None or not kubeconfig.exists():
        return None
    kubectl = Kubectl(program, kubeconfig)
    try:
        kubectl("--request-timeout=5s", "version")
    except KubectlError:
        return None
    return kubectl
