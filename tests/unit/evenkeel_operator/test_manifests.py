"""What the objects of a service must be, field by field of the spec."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from evenkeel_contract.engineflags import OWNED_FLAGS
from evenkeel_operator.core.objects import Manifest
from evenkeel_operator.core.records import Monitoring
from evenkeel_operator.desired import build_all
from evenkeel_operator.manifests.context import BuildContext, drain_s
from evenkeel_operator.manifests.engine import engine_arguments

from tests.support.build_contexts import sample_context, with_apis

SAMPLES = ("simulator.yaml", "gpu.yaml", "vllm.yaml")


def build(context: BuildContext, replicas: int = 2) -> dict[tuple[str, str], Manifest]:
    found = build_all(context, replicas=replicas)
    by_name = {(item["kind"], item["metadata"]["name"]): item for item in found}
    assert len(by_name) == len(found)
    return by_name


def pod_of(objects: dict[tuple[str, str], Manifest], name: str) -> Manifest:
    found: Manifest = objects["Deployment", name]["spec"]["template"]["spec"]
    return found


def main_container(objects: dict[tuple[str, str], Manifest], name: str) -> Manifest:
    found: Manifest = pod_of(objects, name)["containers"][0]
    return found


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_object_is_owned_and_labelled(sample: str) -> None:
    context = sample_context(sample)
    for item in build(context).values():
        assert item["metadata"]["namespace"] == "team-ml"
        assert item["metadata"]["ownerReferences"] == [context.owner_reference]
        assert item["metadata"]["labels"]["evenkeel.dev/service"] == context.name
        assert len(item["metadata"]["name"]) <= 63


@pytest.mark.parametrize("sample", SAMPLES)
def test_equal_input_gives_equal_objects(sample: str) -> None:
    assert build_all(sample_context(sample), replicas=3) == build_all(
        sample_context(sample), replicas=3
    )


@pytest.mark.parametrize("sample", SAMPLES)
def test_pods_pass_the_restricted_standard(sample: str) -> None:
    context = sample_context(sample)
    objects = build(context)
    for name in (f"{context.name}-engine", f"{context.name}-router"):
        pod = pod_of(objects, name)
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
    assert pod_of(objects, f"{context.name}-engine")["automountServiceAccountToken"] is False


@pytest.mark.parametrize("sample", SAMPLES)
def test_without_a_fixed_user_pods_differ_in_nothing_else(sample: str) -> None:
    context = sample_context(sample)
    free = replace(context, defaults=replace(context.defaults, fixed_user=False))
    for name in (f"{context.name}-engine", f"{context.name}-router"):
        fixed, found = pod_of(build(context), name), pod_of(build(free), name)
        assert {key: fixed["securityContext"].pop(key) for key in ("runAsUser", "runAsGroup", "fsGroup")} \
            == dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), 65532)  # fmt: skip
        names = {one["name"]: one for one in found["containers"][0]["env"]}
        if sample != "simulator.yaml" and name.endswith("-engine"):
            found["containers"][0]["env"].remove(names["USER"])
        assert found == fixed


@pytest.mark.parametrize("sample", SAMPLES)
def test_replicas_listen_on_ipv6_where_pods_have_it(sample: str) -> None:
    context = sample_context(sample)
    found = replace(context, defaults=replace(context.defaults, engine_host="::"))
    container = main_container(build(found), f"{context.name}-engine")
    assert "--host=::" in container["args"]
    text = yaml.safe_dump(container)
    assert "0.0.0.0" not in text
    assert "tcp://*" not in text


@pytest.mark.parametrize("sample", SAMPLES)
def test_replicas_have_the_operators_variables_as_plain_text(sample: str) -> None:
    context = sample_context(sample)
    given = {"HTTPS_PROXY": "http://p:3128", "X": "$(HOME)"}
    found = replace(context, defaults=replace(context.defaults, engine_variables=given))
    env = main_container(build(found), f"{context.name}-engine")["env"]
    values = {one["name"]: one.get("value") for one in env}
    downloads = sample != "simulator.yaml"
    assert values.get("HTTPS_PROXY") == ("http://p:3128" if downloads else None)
    assert values.get("X") == ("$$(HOME)" if downloads else None)


@pytest.mark.parametrize("sample", SAMPLES)
def test_selectors_find_the_pods_and_only_them(sample: str) -> None:
    context = sample_context(sample)
    objects = build(context)
    for component, other in (("engine", "router"), ("router", "engine")):
        name = f"{context.name}-{component}"
        selector = objects["Deployment", name]["spec"]["selector"]["matchLabels"]
        labels = objects["Deployment", name]["spec"]["template"]["metadata"]["labels"]
        others = objects["Deployment", f"{context.name}-{other}"]["spec"]["template"]["metadata"]
        assert selector.items() <= labels.items()
        assert not selector.items() <= others["labels"].items()
        assert objects["Service", name]["spec"]["selector"] == selector


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_pod_may_take_as_long_to_leave_as_the_drain(sample: str) -> None:
    context = sample_context(sample)
    objects = build(context)
    for component in ("engine", "router"):
        pod = pod_of(objects, f"{context.name}-{component}")
        hook = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert pod["terminationGracePeriodSeconds"] >= drain_s(context.spec) + hook


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_flag_that_is_set_is_one_that_the_spec_may_not_hold(sample: str) -> None:
    spec = sample_context(sample).spec
    free = {"--revision", "--sleep-on-idle"}  # harmless twice
    flags = (one for one in engine_arguments(spec) if one.startswith("--"))
    ours = {flag.split("=")[0] for flag in flags}
    given = {flag.split("=")[0] for flag in spec.engine.args}
    assert ours - given - free <= set(OWNED_FLAGS)


def test_vllm_has_its_own_command_probes_settings_and_shutdown() -> None:
    container = main_container(build(sample_context("vllm.yaml")), "qwen-engine")
    assert container["command"] == ["python3", "-m", "vllm.entrypoints.cli.main"]
    assert container["args"][:2] == ["serve", "Qwen/Qwen2.5-7B-Instruct"]
    assert "--scheduler-cls=evenkeel_vllm.scheduler.FairScheduler" in container["args"]
    assert not [flag for flag in container["args"] if flag.startswith("--page-size")]
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[name]["httpGet"]["path"] == "/health", "vLLM has no /ready"
    values = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert values["EVENKEEL_REPLICA_POLICY"] == "DLPM"
    assert (values["EVENKEEL_REPORTS_HOST"], values["EVENKEEL_REPORTS_PORT"]) == ("0.0.0.0", "5559")
    assert values["VLLM_NO_USAGE_STATS"] == "1"
    context = sample_context(
        "vllm.yaml",
        model={
            "source": "pvc://weights/qwen",
            "servedName": "q",
            "adapters": [{"name": "support", "source": "pvc://weights/support"}],
        },
    )
    container = main_container(build(context), "qwen-engine")
    assert f"--shutdown-timeout={drain_s(context.spec)}" in container["args"]
    at = container["args"].index("--lora-modules")
    assert container["args"][at + 1] == "q:support=/models/claim/support"


def test_no_object_shows_the_engine_key() -> None:
    arguments = main_container(build(sample_context("gpu.yaml")), "llama-engine")
    assert "--api-key=$(EVENKEEL_ENGINE_KEY)" in arguments["args"]
    assert {
        "name": "EVENKEEL_ENGINE_KEY",
        "valueFrom": {
            "secretKeyRef": {"name": "llama-credentials", "key": "engine-key-0a1b2c3d"},
        },
    } in arguments["env"]


SOURCES = {
    "a repository": ("hf://org/model", ["--model-path=org/model"], None),
    "a revision": ("hf://org/model@v2", ["--model-path=org/model", "--revision=v2"], None),
    "a claim": ("pvc://weights/llama/8b", ["--model-path=/models/claim/llama/8b"], "weights"),
    "a whole claim": ("pvc://weights", ["--model-path=/models/claim"], "weights"),
    "a path": ("file:///opt/llama", ["--model-path=/opt/llama"], None),
}


@pytest.mark.parametrize(("source", "flags", "claim"), SOURCES.values(), ids=SOURCES.keys())
def test_the_model_comes_from(source: str, flags: list[str], claim: str | None) -> None:
    objects = build(sample_context("gpu.yaml", model={"source": source}))
    container = main_container(objects, "llama-engine")
    assert container["args"][: len(flags)] == flags
    claims = [
        volume["persistentVolumeClaim"]
        for volume in pod_of(objects, "llama-engine")["volumes"]
        if "persistentVolumeClaim" in volume
    ]
    assert claims == ([{"claimName": claim, "readOnly": True}] if claim else [])
    assert ("PersistentVolumeClaim", "llama-engine") not in objects


def test_a_cache_is_a_claim_that_engines_mount() -> None:
    objects = build(sample_context("gpu.yaml"))
    claim = objects["PersistentVolumeClaim", "llama-engine"]["spec"]
    assert claim["resources"] == {"requests": {"storage": "100Gi"}}
    mounted = {v["name"]: v for v in pod_of(objects, "llama-engine")["volumes"]}
    assert mounted["cache"]["persistentVolumeClaim"] == {"claimName": "llama-engine"}


@pytest.mark.parametrize("sample", ["gpu.yaml", "vllm.yaml"])
def test_gpus_may_be_claimed_in_place_of_the_extended_resource(sample: str) -> None:
    claims = [
        {"name": "gpu", "resourceClaimTemplateName": "whole"},
        {"name": "nic", "resourceClaimTemplateName": "fabric", "request": "rdma"},
    ]
    context = sample_context(sample, engine={"gpu": {"count": 2, "claims": claims}})
    objects = build(context)
    name = f"{context.name}-engine"
    assert pod_of(objects, name)["resourceClaims"] == [
        {"name": "gpu", "resourceClaimTemplateName": "whole"},
        {"name": "nic", "resourceClaimTemplateName": "fabric"},
    ]
    container = main_container(objects, name)
    assert container["resources"]["claims"] == [{"name": "gpu"}, {"name": "nic", "request": "rdma"}]
    assert "nvidia.com/gpu" not in str(container["resources"])
    assert any("tensor-parallel-size=2" in one for one in container["args"])


def test_gpus_are_asked_for_and_split_over() -> None:
    objects = build(sample_context("gpu.yaml", engine={"gpu": {"count": 4}}))
    container = main_container(objects, "llama-engine")
    assert "--tensor-parallel-size=4" in container["args"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4"}


def test_the_ledger_of_store_file_is_on_a_volume_of_the_only_router() -> None:
    router: dict[str, Any] = {"replicas": 1, "state": {"store": "File", "file": {"size": "2Gi"}}}
    objects = build(sample_context("simulator.yaml", router=router))
    deployment = objects["Deployment", "simulated-router"]["spec"]
    assert deployment["replicas"] == 1
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    pod = deployment["template"]["spec"]
    assert "topologySpreadConstraints" not in pod  # away from the volume
    (near,) = pod["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert near["podAffinityTerm"]["labelSelector"] == deployment["selector"]
    claim = objects["PersistentVolumeClaim", "simulated-router"]["spec"]
    assert claim["resources"] == {"requests": {"storage": "2Gi"}}


def test_the_template_of_the_spec_is_laid_over_and_cannot_break_selectors() -> None:
    template = {
        "metadata": {"labels": {"evenkeel.dev/service": "other", "team": "ml"}},
        "spec": {
            "nodeSelector": {"gpu": "h100"},
            "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
            "resources": {"requests": {"memory": "64Gi"}},
        },
    }
    objects = build(sample_context("gpu.yaml", engine={"template": template}))
    labels = objects["Deployment", "llama-engine"]["spec"]["template"]["metadata"]["labels"]
    assert (labels["evenkeel.dev/service"], labels["team"]) == ("llama", "ml")
    assert pod_of(objects, "llama-engine")["nodeSelector"] == {"gpu": "h100"}
    container = main_container(objects, "llama-engine")
    assert {"name": "NCCL_DEBUG", "value": "INFO"} in container["env"]
    assert container["resources"]["requests"]["memory"] == "64Gi"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1"}


@pytest.mark.parametrize(("replicas", "want"), [(0, 0), (1, 0), (2, 1), (16, 1)])
def test_the_only_replica_is_not_evicted(replicas: int, want: int) -> None:
    objects = build(sample_context("gpu.yaml"), replicas=replicas)
    assert objects["PodDisruptionBudget", "llama-engine"]["spec"]["maxUnavailable"] == want


def test_the_rules_of_a_service_are_a_file_too_if_the_operator_is_told_so() -> None:
    context = with_apis(sample_context("gpu.yaml"))
    assert ("ConfigMap", "llama-alerts") not in build(context)
    plain = replace(context.defaults, monitoring=Monitoring(plain_rules=True))
    objects = build(replace(context, defaults=plain))
    found = objects["ConfigMap", "llama-alerts"]
    assert found["metadata"]["labels"]["evenkeel.dev/rules"] == "true"
    ((name, text),) = found["data"].items()
    assert name == "team-ml.llama.yaml"
    assert yaml.safe_load(text) == objects["PrometheusRule", "llama-alerts"]["spec"]


def test_a_router_has_the_operators_resources_unless_its_template_has_some() -> None:
    def resources(context: BuildContext) -> Any:
        return main_container(build(context), "simulated-router")["resources"]

    context = sample_context("simulator.yaml")
    assert resources(context) == {
        "requests": {"cpu": "100m", "memory": "256Mi"},
        "limits": {"memory": "2Gi"},
    }
    own = {"template": {"spec": {"resources": {"limits": {"memory": "4Gi"}}}}}
    assert resources(sample_context("simulator.yaml", router=own))["limits"] == {"memory": "4Gi"}
    defaults = replace(context.defaults, router_resources={"requests": {"cpu": "10m"}})
    assert resources(replace(context, defaults=defaults)) == {"requests": {"cpu": "10m"}}


def test_optional_objects_need_their_api() -> None:
    route = {"httpRoute": {"parentRefs": [{"name": "gw"}], "hostnames": ["llm.example.com"]}}
    context = sample_context("simulator.yaml", exposure=route)
    kinds = {kind for kind, _ in build(context)}
    assert kinds.isdisjoint({"HTTPRoute", "PodMonitor", "PrometheusRule", "Ingress"})
    both = build(with_apis(context))
    assert ("PodMonitor", "simulated-engine") in both
    spec = both["HTTPRoute", "simulated-router"]["spec"]
    assert spec["rules"][0]["timeouts"] == {"request": "0s", "backendRequest": "0s"}
    assert spec["parentRefs"] == [
        {"name": "gw", "group": "gateway.networking.k8s.io", "kind": "Gateway"}
    ]


def test_an_ingress_lets_a_silent_stream_live_longer_than_the_router_does() -> None:
    objects = build(sample_context("simulator.yaml"))
    annotations = objects["Ingress", "simulated-router"]["metadata"]["annotations"]
    # activationTimeout 600 s, answerTimeout 420 s
    assert annotations["nginx.ingress.kubernetes.io/proxy-read-timeout"] == "1020"
    assert annotations["nginx.ingress.kubernetes.io/proxy-body-size"] == str(16 * 1024**2)


def test_nginx_repeats_exactly_the_requests_that_it_has_not_sent() -> None:
    objects = build(sample_context("simulator.yaml"))
    annotations = objects["Ingress", "simulated-router"]["metadata"]["annotations"]
    words = annotations["nginx.ingress.kubernetes.io/proxy-next-upstream"].split()
    assert {"error", "timeout"} <= set(words)  # a connection that fails or is refused
    assert {"off", "non_idempotent"}.isdisjoint(words)
    assert not [word for word in words if word.startswith("http_")]  # an answer of a router


def test_an_ingress_has_the_hosts_paths_labels_and_annotations_of_the_spec() -> None:
    exposure = {
        "ingress": {
            "host": "llm.example.com",
            "additionalHosts": ["*.example.org", "llm.example.com"],
            "paths": ["/v1", "/anthropic"],
            "annotations": {
                "cert-manager.io/cluster-issuer": "letsencrypt",
                "nginx.ingress.kubernetes.io/proxy-read-timeout": "7",
            },
            "labels": {"team": "ml"},
            "tls": {"secretName": "certificate"},
        }
    }
    found = build(sample_context("simulator.yaml", exposure=exposure))[
        "Ingress", "simulated-router"
    ]
    hosts = ["llm.example.com", "*.example.org"]
    assert [rule["host"] for rule in found["spec"]["rules"]] == hosts
    assert found["spec"]["tls"] == [{"hosts": hosts, "secretName": "certificate"}]
    for rule in found["spec"]["rules"]:
        assert [path["path"] for path in rule["http"]["paths"]] == ["/v1", "/anthropic"]
    annotations = found["metadata"]["annotations"]
    assert annotations["cert-manager.io/cluster-issuer"] == "letsencrypt"
    assert annotations["nginx.ingress.kubernetes.io/proxy-read-timeout"] == "7"
    assert annotations["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    assert found["metadata"]["labels"]["team"] == "ml"
    assert found["metadata"]["labels"]["evenkeel.dev/service"] == "simulated"


def test_a_route_has_the_paths_labels_and_annotations_of_the_spec() -> None:
    route = {
        "parentRefs": [{"name": "gw"}],
        "paths": ["/v1", "/anthropic"],
        "annotations": {"external-dns.alpha.kubernetes.io/ttl": "60"},
        "labels": {"team": "ml"},
    }
    context = with_apis(sample_context("simulator.yaml", exposure={"httpRoute": route}))
    found = build(context)["HTTPRoute", "simulated-router"]
    (rule,) = found["spec"]["rules"]
    assert [match["path"]["value"] for match in rule["matches"]] == ["/v1", "/anthropic"]
    assert found["metadata"]["annotations"] == {"external-dns.alpha.kubernetes.io/ttl": "60"}
    assert found["metadata"]["labels"]["team"] == "ml"


def test_names_of_services_whose_names_resemble_ours_do_not_meet() -> None:
    plain = build(sample_context("simulator.yaml"))
    other = sample_context("simulator.yaml")
    tricky = build(_renamed(other, "simulated-router"))
    assert plain.keys().isdisjoint(tricky.keys())


def _renamed(context: BuildContext, name: str) -> BuildContext:
    metadata = replace(context.service.metadata, name=name)
    return replace(context, service=replace(context.service, metadata=metadata))
