"""FairInferenceService: every rule finds its fault, names the path and the fix, and leaves good ones alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import pytest
from evenkeel_contract.decode import to_plain
from evenkeel_contract.engineflags import BYPASSING_FLAGS, BYPASSING_VARIABLES, OWNED_FLAGS
from evenkeel_contract.gateway import parse_gateway
from evenkeel_contract.queueorder import ReplicaPolicyName
from evenkeel_contract.spec.parts import Runtime
from evenkeel_contract.validate import parse_service, parse_tenant

SERVICE: dict[str, Any] = {
    "apiVersion": "evenkeel.dev/v1alpha1",
    "kind": "FairInferenceService",
    "metadata": {"name": "llama", "namespace": "team-ml", "uid": "set by the cluster"},
    "spec": {
        "model": {
            "source": "hf://meta-llama/Llama-3.1-8B-Instruct",
            "servedName": "llama-3.1-8b",
            "tokenSecretRef": {"name": "hf", "key": "token"},
            "cache": {
                "storageClassName": "fast",
                "size": "100Gi",
                "accessModes": ["ReadWriteMany"],
            },
        },
        "engine": {
            "runtime": "SGLang",
            "replicas": 2,
            "gpu": {"resourceName": "nvidia.com/gpu", "count": 1},
            "args": ["--mem-fraction-static=0.88"],
            "rollout": {"maxSurge": 1, "maxUnavailable": 0},
            "template": {"spec": {"nodeSelector": {"gpu": "h100"}}},
        },
        "scheduling": {"replicaPolicy": "DLPM", "fleetPolicy": "D2LPM", "clientQuantum": 8000},
        "router": {
            "replicas": 2,
            "prefix": {"mode": "Text", "textBlockBytes": 256},
            "state": {"store": "Peers"},
            "limits": {"maxBodySize": "16Mi", "queueTimeout": "120s"},
        },
        "slo": {"ttft": {"threshold": "2s", "objectivePercent": 99}, "alertLabels": {"team": "ml"}},
        "exposure": {"ingress": {"host": "llm.example.com"}},
        "tenancy": {"anonymous": "Reject", "trustedProxies": ["10.0.0.0/8"]},
    },
}
AUTOSCALING: dict[str, Any] = {
    "minReplicas": 1,
    "maxReplicas": 16,
    "maxReplicasPerClient": "50%",
    "prometheus": {"url": "http://prometheus.monitoring:9090"},
    "targets": {"utilizationPercent": 75, "queueTime": "2s", "ttftP95": "1500ms"},
    "behavior": {"scaleDown": {"stabilizationWindowSeconds": 300}},
}
Edit = Callable[[dict[str, Any]], object]


def test_the_sample_of_the_design_is_good() -> None:
    service, faults = parse_service(SERVICE)
    assert faults == ()
    assert service is not None
    assert service.spec.scheduling.replica_policy is ReplicaPolicyName.DLPM
    assert (service.spec.model.name, service.spec.initial_replicas) == ("llama-3.1-8b", 2)
    assert parse_service(to_plain(service)) == (service, ())


def test_an_autoscaled_service_is_good_and_starts_with_its_least_replicas() -> None:
    data = deepcopy(SERVICE)
    del data["spec"]["engine"]["replicas"]
    data["spec"]["autoscaling"] = {**AUTOSCALING, "minReplicas": 3}
    service, faults = parse_service(data)
    assert faults == ()
    assert service is not None
    assert service.spec.initial_replicas == 3
    assert parse_service(to_plain(service)) == (service, ())


def test_a_volume_for_one_node_is_enough_for_one_replica() -> None:
    data = deepcopy(SERVICE)
    data["spec"]["model"]["cache"]["accessModes"] = ["ReadWriteOnce"]
    data["spec"]["engine"]["replicas"] = 1
    assert parse_service(data)[1] == ()


def test_the_least_service_gets_the_defaults() -> None:
    service, faults = parse_service(
        {
            "apiVersion": "evenkeel.dev/v1alpha1",
            "kind": "FairInferenceService",
            "metadata": {"name": "a"},
            "spec": {"model": {"source": "hf://org/Some-Model@main"}},
        }
    )
    assert faults == ()
    assert service is not None
    spec = service.spec
    assert (spec.model.name, spec.engine.runtime, spec.initial_replicas, spec.router.count) == (
        "Some-Model",
        Runtime.SGLANG,
        1,
        2,
    )


def scaled(**changes: object) -> Edit:
    """The sample with autoscaling in place of a fixed number."""

    def edit(spec: dict[str, Any]) -> None:
        del spec["engine"]["replicas"]
        spec["autoscaling"] = {**AUTOSCALING, **changes}

    return edit


CASES: Mapping[str, tuple[Edit, list[str]]] = {
    "adapters with the names of others": (
        lambda s: s["model"].update(
            adapters=[
                {"name": name, "source": source}
                for name, source in (
                    ("llama-3.1-8b", "hf://a/b"),
                    ("x", "pvc://claim/x"),
                    ("x", "file:///x"),
                    ("a:b", "hf://a/b"),
                    ("y", "hf://a/b@main"),
                )
            ]
        ),
        [
            "spec.model.adapters[3].name: must be a name of letters, digits, '-', '_', '.' and '/', not 'a:b'",
            (
                "spec.model.adapters[4].source: must be hf://organisation/adapter, pvc://claim/path or file:///path, "
                "without a revision, not 'hf://a/b@main'"
            ),
            "spec.model.adapters[2].name: 'x' is given twice, first in spec.model.adapters[1]",
            "spec.model.adapters[0].name: 'llama-3.1-8b' is also the model's name; choose another name",
        ],
    ),
    "replicas beside autoscaling": (
        lambda s: s.update(autoscaling=AUTOSCALING),
        ["spec.engine.replicas: is set together with spec.autoscaling; remove one of the two"],
    ),
    "crossed bounds": (
        scaled(minReplicas=17),
        ["spec.autoscaling.minReplicas: 17 is above maxReplicas 16; lower it or raise maxReplicas"],
    ),
    "a cap of nothing": (
        scaled(maxReplicasPerClient=0),
        [
            (
                "spec.autoscaling.maxReplicasPerClient: must be above 0, else a client's requests "
                "cannot start a replica"
            )
        ],
    ),
    "a cap above the maximum": (
        scaled(maxReplicasPerClient=17),
        [
            "spec.autoscaling.maxReplicasPerClient: 17 is above maxReplicas 16; lower it or use a percentage"
        ],
    ),
    "autoscaling without its required fields": (
        lambda s: (s["engine"].pop("replicas"), s.update(autoscaling={})),
        ["spec.autoscaling.maxReplicas: is required", "spec.autoscaling.prometheus: is required"],
    ),
    "a quantum of nothing": (
        lambda s: s["scheduling"].update(clientQuantum=0, workerQuantum=-1),
        [
            "spec.scheduling.clientQuantum: must be Auto or a whole number from 1 to 2147483647, not 0",
            "spec.scheduling.workerQuantum: must be Auto or a whole number from 1 to 2147483647, not -1",
        ],
    ),
    "an unknown policy": (
        lambda s: s["scheduling"].update(replicaPolicy="dlpm", fleetPolicy="Random"),
        [
            (
                "spec.scheduling.replicaPolicy: must be one of DLPM, VTC, VTCPredict, DRR, LCF, LPM, HRRN, FCFS, not 'dlpm'; did "
                "you mean DLPM?"
            ),
            (
                "spec.scheduling.fleetPolicy: must be one of D2LPM, RoundRobin, PerClientRoundRobin, "
                "LeastLoaded, not 'Random'"
            ),
        ],
    ),
    "tokens that cost nothing": (
        lambda s: s["scheduling"].update(inputTokenWeight=0),
        ["spec.scheduling.inputTokenWeight: must be from 1 to 1000000, not 0"],
    ),
    "two exposures": (
        lambda s: s["exposure"].update(httpRoute={"parentRefs": [{"name": "gw"}]}),
        [
            "spec.exposure.httpRoute: is set together with spec.exposure.ingress; remove one of the two"
        ],
    ),
    "an exposure without gateways": (
        lambda s: s.update(exposure={"httpRoute": {"parentRefs": [], "hostnames": ["*.a.b", "*"]}}),
        [
            "spec.exposure.httpRoute.parentRefs: must have at least 1 entries, not 0",
            "spec.exposure.httpRoute.hostnames[1]: must be a DNS name, or '*.' and a DNS name, not '*'",
        ],
    ),
    "a File store with two routers": (
        lambda s: s["router"].update(state={"store": "File"}),
        [
            (
                "spec.router.replicas: must be 1 with state.store File, not 2; use Peers or Redis "
                "for more routers"
            )
        ],
    ),
    "settings of another store": (
        lambda s: s["router"].update(state={"file": {"size": "1Gi"}}),
        [
            "spec.router.state.file: needs store: File, not Peers; remove file or set store: File",
        ],
    ),
    "a Redis store without an address": (
        lambda s: s["router"].update(state={"store": "Redis"}),
        ["spec.router.state.redis: is required with store Redis; set redis.urlSecretRef"],
    ),
    "a volume for one node and several replicas": (
        lambda s: s["model"]["cache"].update(accessModes=["ReadWriteOnce"]),
        [
            (
                "spec.model.cache.accessModes: must include ReadWriteMany or ReadOnlyMany for 2 "
                "replicas (spec.engine.replicas), since they may run on several nodes"
            )
        ],
    ),
    "a volume for one node and autoscaling": (
        lambda s: (
            scaled()(s),
            s["model"]["cache"].update(accessModes=["ReadWriteOnce"]),
        ),
        [
            (
                "spec.model.cache.accessModes: must include ReadWriteMany or ReadOnlyMany for 16 "
                "replicas (spec.autoscaling.maxReplicas), since they may run on several nodes"
            )
        ],
    ),
    "a rollout that cannot move": (
        lambda s: s["engine"].update(rollout={"maxSurge": "0%"}),
        [
            (
                "spec.engine.rollout.maxSurge: must be above 0 if maxUnavailable is 0, else a "
                "rollout could not replace any replica"
            )
        ],
    ),
    "flags that are owned, abbreviated or no flags": (
        lambda s: s["engine"].update(args=["--port=1", "--schedule-p", "8", "--mem-fraction=1"]),
        [
            "spec.engine.args[0]: --port is set by Evenkeel from the rest of the spec; remove it",
            (
                "spec.engine.args[1]: --schedule-policy is set by Evenkeel from the rest of the spec; "
                "remove it"
            ),
            "spec.engine.args[2]: must be a flag, not '8'; write --flag=value as one entry",
        ],
    ),
    "limits that are too large": (
        lambda s: s["router"].update(limits={"maxBodySize": "2Gi", "queueTimeout": "200h"}),
        [
            "spec.router.limits.maxBodySize: must be at most 1Gi, since routers keep a request in memory",
            "spec.router.limits.queueTimeout: must be at most 168h, not 200h",
        ],
    ),
    "a duration without a unit": (
        lambda s: s["router"].update(limits={"queueTimeout": 120}),
        ["spec.router.limits.queueTimeout: must be a duration such as 120s, 1500ms or 5m, not 120"],
    ),
    "a size with the wrong suffix": (
        lambda s: s["model"]["cache"].update(size="100GB"),
        [
            "spec.model.cache.size: must be a quantity such as 16Mi, 100Gi or 500m, not '100GB'",
        ],
    ),
    "a model from nowhere": (
        lambda s: s["model"].update(source="meta-llama/Llama"),
        [
            (
                "spec.model.source: must be hf://organisation/model, s3://bucket/prefix, gs://bucket/prefix, "
                "oci://registry/image:tag, pvc://claim/path or "
                "file:///path, not 'meta-llama/Llama'"
            )
        ],
    ),
    "a network with host bits": (
        lambda s: s["tenancy"].update(trustedProxies=["10.0.0.1/8"]),
        [
            (
                "spec.tenancy.trustedProxies[0]: '10.0.0.1/8' is not a network like 10.0.0.0/8; the "
                "network is 10.0.0.0/8"
            )
        ],
    ),
    "a selector that selects strangely": (
        lambda s: s["tenancy"].update(
            selector={
                "matchExpressions": [
                    {"key": "a", "operator": "In"},
                    {"key": "a", "operator": "Exists", "values": ["x"]},
                ]
            }
        ),
        [
            "spec.tenancy.selector.matchExpressions[0].values: is required with operator In; add at least one",
            "spec.tenancy.selector.matchExpressions[1].values: must be empty with operator Exists; remove them",
        ],
    ),
    "misspelt fields at every level": (
        lambda s: (s.update(enginee={}), s["engine"].update(replica=3)),
        [
            "spec.enginee: unknown field; did you mean engine?",
            "spec.engine.replica: unknown field; did you mean replicas?",
        ],
    ),
    "an echo of a faulty field is not reported": (
        lambda s: s["router"].update(replicas="two", state={"store": "File"}),
        ["spec.router.replicas: must be an integer, not 'two'"],
    ),
    "faults of types and of rules come together": (
        lambda s: (
            s["model"].update(source=1),
            s.update(autoscaling=AUTOSCALING),
            s["engine"].update(args=["--tp=2"]),
        ),
        [
            'spec.model.source: must be a string, not 1; put it in quotes ("…")',
            "spec.engine.replicas: is set together with spec.autoscaling; remove one of the two",
            "spec.engine.args[0]: --tp is set by Evenkeel from the rest of the spec; remove it",
        ],
    ),
}


@pytest.mark.parametrize(("edit", "want"), CASES.values(), ids=CASES.keys())
def test_faults_of_a_service(edit: Edit, want: list[str]) -> None:
    data = deepcopy(SERVICE)
    edit(data["spec"])
    service, faults = parse_service(data)
    assert service is None
    assert [str(fault) for fault in faults] == want


def test_a_resource_of_another_kind_or_version_is_a_fault() -> None:
    _, faults = parse_service({**SERVICE, "kind": "InferenceTenant", "apiVersion": "v1"})
    assert [fault.path for fault in faults] == ["apiVersion", "kind"]


def test_a_name_that_is_too_long_for_what_is_generated_is_a_fault() -> None:
    _, faults = parse_service({**SERVICE, "metadata": {"name": "a" * 41}})
    assert [str(fault) for fault in faults] == ["metadata.name: must have at most 40 bytes, not 41"]


@pytest.mark.parametrize("data", [None, [], "x", 3, {}, {"spec": None}, {"spec": []}])
def test_what_is_no_resource_has_faults_and_never_raises(data: object) -> None:
    for parse in (parse_service, parse_tenant):
        resource, faults = parse(data)
        assert resource is None
        assert faults


@pytest.mark.parametrize("flag", OWNED_FLAGS)
def test_every_owned_flag_is_refused_in_both_spellings(flag: str) -> None:
    data = deepcopy(SERVICE)
    data["spec"]["engine"]["args"] = [flag, f"{flag}=x"]
    assert [fault.path for fault in parse_service(data)[1]] == [
        "spec.engine.args[0]",
        "spec.engine.args[1]",
    ]


@pytest.mark.parametrize("flag", [*BYPASSING_FLAGS, "--disagg"])
def test_flags_that_bypass_the_policy_are_refused(flag: str) -> None:
    data = deepcopy(SERVICE)
    data["spec"]["engine"]["args"] = [f"{flag}=2"]
    (fault,) = parse_service(data)[1]
    assert fault.path == "spec.engine.args[0]"
    assert fault.message.endswith("lets requests bypass the replica policy; remove it")


@pytest.mark.parametrize("name", BYPASSING_VARIABLES)
def test_variables_that_bypass_the_policy_are_refused_in_every_container(name: str) -> None:
    data = deepcopy(SERVICE)
    free = {"name": "HF_HUB_OFFLINE", "value": "1"}
    data["spec"]["engine"]["template"]["spec"]["containers"] = [
        {"name": "engine", "env": [free, {"name": name, "value": "1"}]},
        {"name": "other", "env": [{"name": name, "valueFrom": {}}]},
        {"name": "none"},
        {"name": "odd", "env": ["x", {"name": 3}]},
    ]
    assert [str(fault) for fault in parse_service(data)[1]] == [
        f"spec.engine.template.spec.containers[{place}]: {name} lets requests bypass the replica policy; remove it"
        for place in ("0].env[1", "1].env[0")
    ]
    data["spec"]["engine"]["template"]["spec"]["containers"] = {"name": "no list"}
    assert not parse_service(data)[1]


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("nginx.ingress.kubernetes.io/configuration-snippet", True),
        ("nginx.ingress.kubernetes.io/server-snippet", True),
        ("nginx.org/location-snippets", True),
        ("haproxy.org/backend-config-snippet", True),
        ("haproxy-ingress.github.io/config-backend", True),
        ("ingress.kubernetes.io/config-backend", True),
        ("nginx.ingress.kubernetes.io/proxy-body-size", False),
        ("cert-manager.io/cluster-issuer", False),
    ],
)
def test_snippets_of_any_controller_are_refused(name: str, refused: bool) -> None:
    routes = {"parentRefs": [{"name": "g"}], "annotations": {name: "x"}}
    for exposure in ({"ingress": {"host": "a.test", "annotations": {name: "x"}}}, {"httpRoute": routes}):  # fmt: skip
        data = deepcopy(SERVICE)
        data["spec"]["exposure"] = exposure
        gateway = {**data, "kind": "FairInferenceGateway"}
        gateway["spec"] = {"models": [{"serviceSelector": {}}], "exposure": exposure}
        (part,) = exposure
        for faults in (parse_service(data)[1], parse_gateway(gateway)[1]):
            paths = [fault.path for fault in faults]
            assert paths == ([f"spec.exposure.{part}.annotations['{name}']"] if refused else [])


def test_labels_of_alerts_are_such_as_prometheus_takes_and_none_of_ours() -> None:
    data = deepcopy(SERVICE)
    data["spec"]["slo"]["alertLabels"] = {"team": "ml", "pager-duty": "x", "severity": "page"}
    assert [str(fault) for fault in parse_service(data)[1]] == [
        "spec.slo.alertLabels['pager-duty']: must be a Prometheus label name: letters, digits and _, not starting with a digit",
        "spec.slo.alertLabels['severity']: is set by Evenkeel; choose another name",
    ]


@pytest.mark.parametrize(
    "argument",
    [
        *("--api_key=x", "--enable_prompt_tokens_details", "--no-enable-prompt-tokens-details"),
        *("--kv-events-config.topic=x", "--shutdown-timeout=1", "--scheduler-cls=x"),
    ],
)
def test_the_other_spellings_of_vllm_are_refused_too(argument: str) -> None:
    data = deepcopy(SERVICE)
    data["spec"]["engine"]["args"] = [argument]
    (fault,) = parse_service(data)[1]
    assert "is set by Evenkeel" in fault.message
