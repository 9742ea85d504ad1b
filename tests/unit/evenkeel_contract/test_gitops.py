"""Files for GitOps tools: kustomize merges lists by their keys and renames Secrets, Argo CD sees the health of a service."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from crds import kustomize
from e2e.rig.layout import CACHE
from tests.support.crd_documents import SERVICE, TENANT, changed

GITOPS = Path(__file__).parents[3] / "crds" / "gitops"
KIND, TENANT_KIND = SERVICE["kind"], TENANT["kind"]


def test_the_files_for_kustomize_are_those_of_the_schema() -> None:
    for name, text in kustomize.files().items():
        assert (GITOPS / name).read_text() == text, "run `make crds`"


def built(folder: Path, *resources: dict[str, Any], **fields: Any) -> dict[str, dict[str, Any]]:
    """Kind → object, as `kubectl kustomize` builds it with the shipped files."""
    program = CACHE / "bin" / "kubectl"
    found = str(program) if program.exists() else shutil.which("kubectl")
    if found is None:
        pytest.skip("no kubectl")
    for name in kustomize.files():
        shutil.copy(GITOPS / name, folder)
    (folder / "resources.yaml").write_text(yaml.safe_dump_all(resources))
    plain = {
        "resources": ["resources.yaml"],
        "openapi": {"path": kustomize.OPENAPI},
        "configurations": [kustomize.NAMES],
        **fields,
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(plain))
    done = subprocess.run(
        [found, "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}


def test_kustomize_merges_entries_of_lists_by_their_keys(tmp_path: Path) -> None:
    service = changed(SERVICE, {"spec.model.adapters": [{"name": name, "source": f"hf://a/{name}"} for name in ("one", "two")]})  # fmt: skip
    patches = [
        {**SERVICE, "spec": {"model": {"adapters": [{"name": "two", "source": "hf://a/new"}]}}},
        {**TENANT, "spec": {"clients": [{"name": "batch", "weight": 9}]}},
    ]
    found = built(tmp_path, service, TENANT, patches=[{"patch": json.dumps(one)} for one in patches])  # fmt: skip
    adapters = {one["name"]: one["source"] for one in found[KIND]["spec"]["model"]["adapters"]}
    assert adapters == {"one": "hf://a/one", "two": "hf://a/new"}
    clients = {one["name"]: one["weight"] for one in found[TENANT_KIND]["spec"]["clients"]}
    assert clients == {"chat": 3, "batch": 9}


def test_kustomize_renames_every_secret_that_a_resource_names(tmp_path: Path) -> None:
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "own", "key": "k"}}}]
    autoscaling = {"maxReplicas": 2, "prometheus": {"url": "http://p", "tokenSecretRef": {"name": "own", "key": "k"}}}  # fmt: skip
    service = changed(
        SERVICE,
        {
            "spec.model.tokenSecretRef.name": "own",
            "spec.router.state.redis": {"urlSecretRef": {"name": "own", "key": "k"}},
            "spec.autoscaling": autoscaling,
            "spec.exposure.ingress.tls.secretName": "own",
            "spec.federation.tokenSecretRef.name": "own",
            "spec.engine.template.spec.env": env,
        },
    )
    tenant = changed(TENANT, {"spec.apiKeys.0.secretRef.name": "own"})
    generator = [{"name": "own", "literals": ["k=v"]}]
    found = built(tmp_path, service, tenant, secretGenerator=generator)
    name = found["Secret"]["metadata"]["name"]
    assert name.startswith("own-")
    spec = found[KIND]["spec"]
    assert spec["model"]["tokenSecretRef"]["name"] == name
    assert spec["router"]["state"]["redis"]["urlSecretRef"]["name"] == name
    assert spec["federation"]["tokenSecretRef"]["name"] == name
    assert spec["autoscaling"]["prometheus"]["tokenSecretRef"]["name"] == name
    assert spec["exposure"]["ingress"]["tls"]["secretName"] == name
    assert spec["engine"]["template"]["spec"]["env"][0]["valueFrom"]["secretKeyRef"]["name"] == name
    assert found[TENANT_KIND]["spec"]["apiKeys"][0]["secretRef"]["name"] == name


def lua(value: Any) -> str:
    """A value as Lua writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"[{json.dumps(k)}] = {lua(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(lua, value)) + "}"
    return json.dumps(value)


@pytest.mark.parametrize(
    ("want", "said"),
    [
        ("Healthy", {"Ready": "Serving"}),
        ("Healthy", {"Ready": "Idle"}),
        ("Progressing", {"Ready": "Serving", "Reconciling": "RollingOut"}),
        ("Degraded", {"Ready": "Serving", "Stalled": "RolloutStuck", "Degraded": "RolloutStuck"}),
        ("Degraded", {"Ready": "Serving", "Degraded": "HostTaken"}),
        ("Suspended", {"!Ready": "NoReplicas"}),
        ("Progressing", {"!Ready": "EnginesNotReady"}),
        ("Progressing", {"Ready": "Serving", "generation": 1}),
        ("Progressing", {}),
    ],
)
def test_argo_cd_sees_the_health_of_a_service(want: str, said: dict[str, Any]) -> None:
    program = shutil.which("lua5.1")
    if program is None:
        pytest.skip("no lua5.1: make tools")
    generation = said.pop("generation", 2) if said else None
    status = {} if generation is None else {"observedGeneration": generation, "conditions": [
        {"type": kind.lstrip("!"), "status": "False" if kind.startswith("!") else "True", "reason": reason, "message": f"because of {reason}"}
        for kind, reason in said.items()
    ]}  # fmt: skip
    item = {"metadata": {"generation": 2}, "status": status}
    code = f"obj = {lua(item)}; local found = dofile(arg[1]); io.write(found.status, '\\n', found.message)"  # fmt: skip
    done = subprocess.run(
        [program, "-", str(GITOPS / "argocd-health.lua")],
        input=code,
        capture_output=True,
        text=True,
        check=True,
    )
    health, message = done.stdout.split("\n")
    assert health == want
    assert message
