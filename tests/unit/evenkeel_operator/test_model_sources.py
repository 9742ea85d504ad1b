"""What pods get of each kind of source: paths, volumes, downloads, and the words for a pod that starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from evenkeel_contract.names import MODEL_LABEL
from evenkeel_operator.core.fill import Fill, digest_of
from evenkeel_operator.core.objects import OPTIONAL_KINDS
from evenkeel_operator.core.workload import workload
from evenkeel_operator.desired import build_all
from evenkeel_operator.manifests.context import BuildContext
from evenkeel_operator.manifests.engine import engine_deployment
from evenkeel_operator.manifests.model import NO_VOLUME_TYPE, model_job, model_policy

from tests.support.build_contexts import document, sample_context, subject_of
from tests.support.operator_lives import KEY, Operator, cluster_with_the_sample, condition

S3 = "s3://models/llama/v1"
Plain = dict[str, Any]


def context(source: str = S3, *, sample: str = "gpu.yaml", engine: Plain | None = None, **model: Any) -> BuildContext:  # fmt: skip
    plain = document(sample)
    plain["spec"]["model"] = {"source": source, "servedName": "llama", **model}
    plain["spec"]["engine"] |= engine or {}
    return subject_of(plain, apis=OPTIONAL_KINDS)


def pod(of: BuildContext) -> Plain:
    spec: Plain = engine_deployment(of, replicas=1)["spec"]["template"]["spec"]
    return spec


def job(of: BuildContext, **fill: Any) -> Plain:
    built = model_job(replace(of, fill=Fill(service=of.service, is_filled=False, **fill)))
    assert built is not None
    return built


def volumes(spec: Plain) -> Plain:
    return {one["name"]: one for one in spec["volumes"]}


def mounts(container: Plain) -> Plain:
    return {one["name"]: one for one in container["volumeMounts"]}


CACHE = {"size": "10Gi"}


def test_replicas_mount_the_volume_of_a_job_read_only() -> None:
    of = context(cache=CACHE)
    spec = pod(of)
    (engine,) = spec["containers"]
    claim = {"claimName": "llama-engine", "readOnly": True}
    assert volumes(spec)["model"]["persistentVolumeClaim"] == claim
    assert mounts(engine)["model"]["readOnly"] is True
    assert mounts(engine)["model"]["subPath"] == "llama"
    assert f"--model-path=/models/filled/{digest_of(of.spec.model)}" in engine["args"]
    assert "--served-model-name=llama" in engine["args"]
    assert "initContainers" not in spec


def test_without_a_cache_an_init_container_downloads_a_bucket() -> None:
    spec = pod(
        context(objectStore={"secretRef": {"name": "bucket"}, "endpoint": "http://minio:9000"})
    )
    (first,), (engine,) = spec["initContainers"], spec["containers"]
    assert volumes(spec)["model"]["emptyDir"] == {}
    assert mounts(engine)["model"]["readOnly"] is True
    assert "--endpoint=http://minio:9000" in first["args"]
    assert not any(one.startswith("--port") for one in first["args"])
    secrets = {
        one["name"]: one["valueFrom"]["secretKeyRef"] for one in first["env"] if "valueFrom" in one
    }
    assert {one["name"] for one in secrets.values()} == {"bucket"}
    assert secrets["AWS_SESSION_TOKEN"]["optional"] is True


def test_a_bucket_of_google_is_read_with_the_key_of_a_service_account() -> None:
    (first,) = pod(context("gs://models/x", objectStore={"secretRef": {"name": "gcp"}}))[
        "initContainers"
    ]
    (key,) = (one for one in first["env"] if "valueFrom" in one)
    ref = {"name": "gcp", "key": "credentials.json"}
    assert key == {"name": "GOOGLE_SERVICE_ACCOUNT_KEY", "valueFrom": {"secretKeyRef": ref}}


def test_an_image_is_a_read_only_volume_with_the_folder_of_the_source() -> None:
    spec = pod(
        context("oci://registry.corp:5000/models/llama:v1@sha256:" + "a" * 64 + "#deep/files")
    )
    (engine,) = spec["containers"]
    reference = "registry.corp:5000/models/llama:v1@sha256:" + "a" * 64
    assert volumes(spec)["model-image"]["image"] == {"reference": reference}
    assert mounts(engine)["model-image"] == {"name": "model-image", "mountPath": "/models/image", "readOnly": True}  # fmt: skip
    assert "--model-path=/models/image/deep/files" in engine["args"]


@pytest.mark.parametrize(
    ("source", "want"),
    [
        ("oci://ghcr.io/org/llama:1.0#a/b", "llama"),
        ("oci://localhost:5000/llama@sha256:" + "b" * 64, "llama"),
        ("s3://models/llama/v1/", "v1"),
        ("gs://models", "models"),
        ("hf://org/name@main", "name"),
        ("pvc://claim/llama", "llama"),
    ],
)
def test_the_name_that_clients_send_is_the_last_part_of_the_source(source: str, want: str) -> None:
    assert context(source, servedName=None).spec.model.name == want


def test_a_hub_source_with_a_job_is_a_folder_without_a_revision() -> None:
    of = context("hf://org/name@v2", cache={**CACHE, "fill": "Job"}, tokenSecretRef={"name": "hf", "key": "token"})  # fmt: skip
    (engine,) = pod(of)["containers"]
    assert not any(one.startswith("--revision") for one in engine["args"])
    (container,) = job(of)["spec"]["template"]["spec"]["containers"]
    assert "--source=hf://org/name@v2" in container["args"]
    assert {one["name"] for one in container["env"]} >= {"HF_TOKEN"}


def test_an_existing_claim_is_used_and_none_is_made() -> None:
    of = context(cache={"claimName": "models"})
    assert volumes(pod(of))["model"]["persistentVolumeClaim"]["claimName"] == "models"
    inner = job(of)["spec"]["template"]["spec"]
    assert volumes(inner)["model"]["persistentVolumeClaim"] == {"claimName": "models"}
    built = build_all(replace(of, fill=Fill(service=of.service, is_filled=True)), replicas=1)
    assert "PersistentVolumeClaim" not in [one["kind"] for one in built]
    hub = pod(context("hf://org/name", cache={"claimName": "models"}))
    assert volumes(hub)["cache"]["persistentVolumeClaim"] == {"claimName": "models"}


def test_the_job_follows_the_template_of_engines_but_not_their_gpus() -> None:
    template = {
        "metadata": {"labels": {"team": "ml"}, "annotations": {"sidecar": "none"}},
        "spec": {
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "nodeSelector": {"zone": "a"},
            "env": [{"name": "HF_ENDPOINT", "value": "http://mirror"}],
            "resources": {"limits": {"nvidia.com/gpu": "8"}},
            "serviceAccountName": "reader",
        },
    }
    found = job(context(cache=CACHE, engine={"template": template}))["spec"]["template"]
    (container,) = found["spec"]["containers"]
    assert found["metadata"]["labels"]["team"] == "ml"
    assert found["metadata"]["annotations"] == {"sidecar": "none"}
    assert found["spec"]["nodeSelector"] == {"zone": "a"}
    assert found["spec"]["serviceAccountName"] == "reader"
    assert {"name": "HF_ENDPOINT", "value": "http://mirror"} in container["env"]
    assert container["resources"] == {"requests": {"cpu": "100m", "memory": "256Mi"}}


def test_the_pod_of_a_job_is_as_restricted_as_the_others() -> None:
    of = context(cache=CACHE)
    spec = job(of)["spec"]["template"]["spec"]
    engines = pod(of)
    assert spec["securityContext"] == engines["securityContext"]
    assert spec["containers"][0]["securityContext"] == engines["containers"][0]["securityContext"]
    assert spec["automountServiceAccountToken"] is False
    free = replace(of, defaults=replace(of.defaults, fixed_user=False, pull_secrets=("corp",)))
    spec = job(free)["spec"]["template"]["spec"]
    assert "runAsUser" not in spec["securityContext"]
    assert spec["imagePullSecrets"] == [{"name": "corp"}]


def test_only_the_operator_reaches_the_pod_of_a_job() -> None:
    of = context(cache=CACHE)
    named = replace(of, defaults=replace(of.defaults, operator_namespace="evenkeel-system"))
    policy = model_policy(replace(named, fill=Fill(service=of.service, is_filled=False)))
    assert policy is not None
    (rule,) = policy["spec"]["ingress"]
    (peer,) = rule["from"]
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "evenkeel-system"}  # fmt: skip
    assert model_policy(of) is None


def test_a_volume_of_one_node_is_filled_on_the_node_of_the_replica() -> None:
    of = context(sample="simulator.yaml", cache={**CACHE, "accessModes": ["ReadWriteOnce"]}, engine={"replicas": 1})  # fmt: skip
    assert "affinity" not in job(of)["spec"]["template"]["spec"]
    affinity = job(of, keeps="0" * 16)["spec"]["template"]["spec"]["affinity"]["podAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchLabels"]["evenkeel.dev/component"] == "engine"


def test_a_simulated_replica_waits_for_a_job_and_downloads_nothing_itself() -> None:
    spec = pod(context(sample="simulator.yaml", cache=CACHE))
    assert "model" in volumes(spec)
    spec = pod(context(sample="simulator.yaml"))
    assert "initContainers" not in spec
    assert set(volumes(spec)) == {"tmp"}


def test_engines_of_other_sources_have_no_label_of_a_model() -> None:
    for of in (sample_context("gpu.yaml"), sample_context("simulator.yaml"), context("pvc://c/x")):
        labels = engine_deployment(of, replicas=1)["spec"]["template"]["metadata"]["labels"]
        assert MODEL_LABEL not in labels


async def test_a_cluster_without_image_volumes_is_named_with_its_remedy() -> None:
    world = cluster_with_the_sample(
        model={"source": "oci://registry/llama:v1"}, engine={"runtime": "SGLang"}
    )
    said = f"spec.template.spec.volumes[1]: Required value: {NO_VOLUME_TYPE}"
    world.refuses = lambda item: said if item["kind"] == "Deployment" else None
    await Operator(world).make_pass(KEY)
    message = condition(world, "SpecValid")["message"]
    assert message.startswith("spec.model.source: oci:// needs image volumes")
    assert "Kubernetes 1.35" in message


DEPLOYMENT = {"metadata": {"generation": 1}, "spec": {"replicas": 1}, "status": {"replicas": 1}}
LABELS = {"evenkeel.dev/component": "engine"}
RUNS = [{"name": "x", "state": {"running": {"startedAt": "2026-01-31T11:00:05Z"}}}]
SCHEDULED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-31T11:00:00Z"}


@pytest.mark.parametrize(
    ("status", "want"),
    [
        ({}, ""),
        ({"conditions": [SCHEDULED]}, "pod a waits for its image or its volumes since 2026-01-31T11:00:00Z"),
        ({"conditions": [SCHEDULED], "initContainerStatuses": RUNS}, "pod a downloads the model since 2026-01-31T11:00:05Z"),
        ({"conditions": [SCHEDULED], "containerStatuses": RUNS}, "pod a loads the model since 2026-01-31T11:00:05Z"),
        ({"conditions": [{"type": "ContainersReady", "status": "True"}], "containerStatuses": RUNS}, ""),
    ],
)  # fmt: skip
def test_a_pod_that_starts_says_what_it_does_and_since_when(status: Plain, want: str) -> None:
    pods = [{"metadata": {"name": "a", "labels": LABELS}, "status": status}]
    assert workload(DEPLOYMENT, wanted=1, pods=pods).starting == want
