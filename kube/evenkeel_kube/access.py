"""Address and credentials of the API server: those of the pod, or those of a kubeconfig."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kubernetes.aio.client import Configuration
from kubernetes.aio.config import load_kube_config
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.incluster_config import InClusterConfigLoader

from evenkeel_kube.errors import CredentialsError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def in_pod(
    environment: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT
) -> Configuration:
    """What the kubelet gives every pod; the token is read again each minute. Raises `CredentialsError`."""
    found = _configuration()
    try:
        InClusterConfigLoader(
            token_filename=str(folder / "token"),
            cert_filename=str(folder / "ca.crt"),
            environ=environment,
        ).load_and_set(found)
    except (ConfigException, OSError) as error:
        message = f"no credentials of a pod ({error}); is this a pod that mounts its token?"
        raise CredentialsError(message) from error
    return found


def namespace_of_pod(folder: Path = SERVICE_ACCOUNT) -> str:
    """The namespace of this pod. Raises `CredentialsError`."""
    try:
        return (folder / "namespace").read_text().strip()
    except OSError as error:
        message = f"the namespace of this pod is unknown ({error})"
        raise CredentialsError(message) from error


async def in_pod_or_kubeconfig() -> Configuration:
    """The pod's credentials, or those of KUBECONFIG. Raises `CredentialsError`."""
    try:
        return in_pod()
    except CredentialsError as no_pod:
        found = _configuration()
        try:
            await load_kube_config(client_configuration=found)
        except (ConfigException, OSError, ValueError) as error:
            raise CredentialsError(f"{no_pod} No kubeconfig either: {error}") from error
        return found


def _configuration() -> Configuration:
    # The proxies of the environment are for other traffic: a pod reaches the API server directly.
    found = Configuration(client_session_kwargs={"trust_env": False})
    found.retries = 0  # callers retry, with a back-off of their own
    return found
