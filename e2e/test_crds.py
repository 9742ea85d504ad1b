"""The API server and the contract judge alike: every rule, every constraint, defaults, scale, status, samples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml
from evenkeel_contract.crd import definitions
from evenkeel_contract.crd.definition import UNSEEN
from evenkeel_contract.validate import parse_service

from e2e.kubectl import Kubectl, KubectlError
from tests.support.crd_boundaries import NASTY, Boundary, boundaries, texts
from tests.support.crd_cases import RULES, Pair
from tests.support.crd_documents import (
    EXTERNAL,
    GONE,
    POOLED,
    SCALED,
    SERVICE,
    SHARED_SECRET,
    TENANT,
    Changes,
    Document,
    changed,
    faults_of,
)

CRDS: Final = Path(__file__).parents[1] / "crds"
NAMESPACE: Final = "crds-e2e"
SCHEMAS: Final = {
    definition["spec"]["names"]["kind"]: definition["spec"]["versions"][0]["schema"][
        "openAPIV3Schema"
    ]
    for definition in definitions().values()
}
BOUNDARIES: Final = {
    f"{document['kind']}:{boundary.path}:{boundary.constraint}": boundary
    for document in (SERVICE, SCALED, EXTERNAL, POOLED, TENANT)
    for boundary in boundaries(document, SCHEMAS[document["kind"]])
}


TEXTS: Final = {
    f"{document['kind']}:{path}": (document, path)
    for document in (SERVICE, SCALED, EXTERNAL, POOLED, TENANT)
    for path in texts(document, SCHEMAS[document["kind"]])
}


# No operator writes the status of what is stored here.
pytestmark = pytest.mark.alone


@pytest.fixture(scope="module", autouse=True)
def installed(kubectl: Kubectl) -> Iterator[None]:
    """Both definitions and a namespace; what was not there before is gone afterwards."""
    before = kubectl("get", "crd", "-o", "name")
    names = [f"crd/{name}" for name in definitions()]
    try:
        kubectl("apply", "--server-side", "--force-conflicts", "-f", CRDS)
        kubectl("wait", "--for=condition=Established", *names, "--timeout=60s")
        kubectl("create", "namespace", NAMESPACE)
        yield
    finally:
        kubectl("delete", "--ignore-not-found", "namespace", NAMESPACE)
        if not any(definition in before for definition in definitions()):
            kubectl("delete", "--ignore-not-found", *names)


def url(document: Document) -> str:
    plural = f"{document['kind'].lower()}s"
    return f"/apis/evenkeel.dev/v1alpha1/namespaces/{NAMESPACE}/{plural}"


def refusal(api: httpx.Client, document: Document) -> str | None:
    """What the API server says against creating `document`, strictly read; None where it would."""
    answer = api.post(
        url(document), params={"dryRun": "All", "fieldValidation": "Strict"}, json=document
    )
    return None if answer.is_success else str(answer.json()["message"])


@pytest.mark.core
@pytest.mark.parametrize("pair", RULES.values(), ids=RULES.keys())
def test_a_rule_refuses_the_invalid_object_and_accepts_the_valid_one(
    api: httpx.Client, pair: Pair
) -> None:
    assert refusal(api, changed(pair.base, pair.good)) is None
    said = refusal(api, changed(pair.base, pair.bad))
    assert said is not None
    assert re.search(
        rf"{re.escape(pair.path)}: [A-Z][a-z ]+: (.+: )?(\w+ )?{re.escape(pair.message)}", said
    ), said


@pytest.mark.parametrize("boundary", BOUNDARIES.values(), ids=BOUNDARIES.keys())
def test_a_constraint_refuses_outside_values_and_agrees_with_the_contract(
    api: httpx.Client, boundary: Boundary
) -> None:
    said = refusal(api, boundary.outside)
    assert said is not None
    assert boundary.path in said
    assert faults_of(boundary.outside) != ()
    if boundary.inside is not None:
        said = refusal(api, boundary.inside)
        faults = faults_of(boundary.inside)
        assert (said is None) == (faults == ()), (said, [str(fault) for fault in faults])


@pytest.mark.parametrize(("document", "path"), TEXTS.values(), ids=TEXTS.keys())
def test_nasty_texts_are_judged_as_the_contract_judges_them(
    api: httpx.Client, document: Document, path: str
) -> None:
    apart = []
    for text in NASTY:
        odd = changed(document, {path: text})
        said, faults = refusal(api, odd), faults_of(odd)
        assert "type conversion error" not in (said or "")
        if (said is None) != (faults == ()):
            apart.append((text, said, [str(fault) for fault in faults]))
    assert apart == []


@pytest.mark.core
def test_what_cel_cannot_afford_is_taken_here_and_left_to_the_contract(api: httpx.Client) -> None:
    assert refusal(api, SHARED_SECRET) is None
    assert [fault.path for fault in faults_of(SHARED_SECRET)] == ["spec.apiKeys[1].secretRef"]


@pytest.mark.core
def test_every_cel_rule_has_been_seen_to_refuse(api: httpx.Client) -> None:
    said = " ".join(refusal(api, changed(p.base, p.bad)) or "" for p in RULES.values())
    said += " ".join(edit_is_refused(api, *edit) for edit in TRANSITIONS.values())
    messages = {rule["message"] for schema in SCHEMAS.values() for rule in cel(schema)}
    assert len(messages) > 20
    assert {message for message in messages if message not in said} == set()


def cel(node: Any) -> Iterator[dict[str, str]]:
    if isinstance(node, dict):
        yield from node.get("x-kubernetes-validations", ())
        for part in node.values():
            yield from cel(part)


def test_the_largest_objects_are_within_the_budget_of_cel(api: httpx.Client) -> None:
    longest = "x" * 249
    clients = [{"name": f"{longest}{i:04}"} for i in range(1000)]
    keys = [
        {
            "name": f"{i}",
            "client": clients[-1 - i]["name"],
            "secretRef": {"name": "s", "key": f"{i}"},
        }
        for i in range(1000)
    ]
    for count in (250, 251, 1000):  # just compared, just not compared, as many as there may be
        tenant = changed(TENANT, {"spec": {"clients": clients, "apiKeys": keys[:count]}})
        assert refusal(api, tenant) is None, count
        assert faults_of(tenant) == ()
    args = [f"--{'a' * 510}={'b' * 510}"] * 128
    networks = ["fd00:0000:0000:0000:0000:0000:0000:0000/128"] * 64
    term = {"key": "k" * 317, "operator": "In", "values": ["v" * 63] * 64}
    service = changed(
        SERVICE,
        {
            "spec.engine.args": args,
            "spec.tenancy.trustedProxies": networks,
            "spec.tenancy.selector.matchExpressions": [term] * 32,
        },
    )
    assert refusal(api, service) is None
    assert faults_of(service) == ()


TRANSITIONS: Final[dict[str, tuple[Changes, Changes, str]]] = {
    "another storage class": (
        {},
        {"spec.model.cache.storageClassName": "slow"},
        "spec.model.cache.storageClassName: Invalid value: storageClassName cannot change",
    ),
    "a storage class taken away": (
        {},
        {"spec.model.cache.storageClassName": GONE},
        "spec.model.cache.storageClassName: Invalid value: storageClassName cannot change",
    ),
    "other access modes": (
        {},
        {"spec.model.cache.accessModes": ["ReadOnlyMany"]},
        "spec.model.cache.accessModes: Invalid value: accessModes cannot change",
    ),
    "a smaller cache": (
        {},
        {"spec.model.cache.size": "99Gi"},
        "spec.model.cache.size: Invalid value: size cannot shrink",
    ),
    "a smaller file": (
        {},
        {"spec.router.state.file.size": "512Mi"},
        "spec.router.state.file.size: Invalid value: size cannot shrink while the volume exists",
    ),
}
"""An object, a change of it, and the refusal of the change."""


def edit_is_refused(api: httpx.Client, first: Changes, then: Changes, want: str) -> str:
    """What the API server says against the change of a stored object."""
    document = changed(SERVICE, first)
    assert api.post(url(document), json=document).is_success
    path = f"{url(document)}/{document['metadata']['name']}"
    try:
        stored = api.get(path).json()
        answer = api.put(path, json=changed(stored, then))
        assert answer.status_code == 422, want
        return str(answer.json()["message"])
    finally:
        assert api.delete(path).is_success


@pytest.mark.core
@pytest.mark.parametrize(("first", "then", "want"), TRANSITIONS.values(), ids=TRANSITIONS.keys())
def test_what_cannot_change_is_refused(
    api: httpx.Client, first: Changes, then: Changes, want: str
) -> None:
    assert want in edit_is_refused(api, first, then, want)


@pytest.fixture
def stored(api: httpx.Client) -> Iterator[str]:
    """The path of the least service there can be."""
    document = changed(SERVICE, {"spec": {"model": {"source": "hf://a/b"}}})
    assert api.post(url(document), json=document).status_code == 201
    path = f"{url(document)}/llama"
    yield path
    assert api.delete(path).is_success


def patched(api: httpx.Client, path: str, change: object) -> httpx.Response:
    kind = {"content-type": "application/merge-patch+json"}
    return api.patch(path, content=json.dumps(change), headers=kind)


@pytest.mark.core
def test_a_cache_may_grow_be_removed_and_come_back_otherwise(
    api: httpx.Client, stored: str
) -> None:
    for cache in ({"size": "1Gi"}, {"size": 2**31}, None, {"size": "1Mi", "storageClassName": "x"}):
        answer = patched(api, stored, {"spec": {"model": {"cache": cache}}})
        assert answer.is_success, (cache, answer.text)


@pytest.mark.core
def test_defaults_appear_and_mean_what_the_contract_means(api: httpx.Client, stored: str) -> None:
    seen = api.get(stored).json()
    given = changed(SERVICE, {"spec": {"model": {"source": "hf://a/b"}}})
    service, faults = parse_service({**given, "spec": seen["spec"]})
    assert faults == ()
    assert service == parse_service(given)[0]
    assert "replicas" not in seen["spec"]["engine"]
    assert seen["spec"]["scheduling"]["isolation"] == "50%"
    for name in ("clientQuantum", "order"):
        assert name not in seen["spec"]["scheduling"], "the version before could not read it"
    assert seen["spec"]["router"]["limits"]["maxBodySize"] == "16Mi"


@pytest.mark.core
def test_a_status_is_written_on_its_own_and_shown(
    api: httpx.Client, kubectl: Kubectl, stored: str
) -> None:
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "AllReady",
        "message": "serves",
        "lastTransitionTime": "2026-01-31T12:00:00Z",
    }
    status = {
        "replicas": 3,
        "readyReplicas": 2,
        "url": "http://llm.example.com",
        "fairness": {"shareErrorPercent": 4},
        "conditions": [ready],
    }
    generation = api.get(stored).json()["metadata"]["generation"]
    patched(api, stored, {"status": status})
    assert api.get(stored).json()["status"] == UNSEEN
    change = {"status": status, "spec": {"engine": {"replicas": 9}}}
    assert patched(api, f"{stored}/status", change).is_success
    seen = api.get(stored).json()
    whole = {**UNSEEN, **status}
    assert (seen["status"], seen["metadata"]["generation"]) == (whole, generation)
    assert "replicas" not in seen["spec"]["engine"]
    header, row = kubectl("-n", NAMESPACE, "get", "fis", "llama").splitlines()
    assert header.split() == [
        "NAME",
        "READY",
        "REPLICAS",
        "READY",
        "REPLICAS",
        "URL",
        "SHAREERROR",
        "AGE",
    ]
    assert row.split()[:6] == ["llama", "True", "3", "2", "http://llm.example.com", "4"]


@pytest.mark.core
@pytest.mark.parametrize(
    "condition",
    [
        {"type": "Ready", "status": "Yes"},
        {"type": "Ready", "status": "True", "lastTransitionTime": "yesterday"},
        {"type": "Ready", "status": "True", "reason": "in words"},
        {"type": "Ready", "status": "True", "reason": None},
    ],
)
def test_a_status_that_is_none_is_refused(
    api: httpx.Client, stored: str, condition: dict[str, object]
) -> None:
    base = {"reason": "A", "message": "", "lastTransitionTime": "2026-01-31T12:00:00Z"}
    answer = patched(api, f"{stored}/status", {"status": {"conditions": [base | condition]}})
    assert answer.status_code == 422
    assert "status.conditions[0]" in answer.json()["message"]


@pytest.mark.core
def test_kubectl_scales_the_service_and_an_autoscaler_finds_its_pods(
    api: httpx.Client, kubectl: Kubectl, stored: str
) -> None:
    patched(api, f"{stored}/status", {"status": {"replicas": 1, "selector": "a=b"}})
    kubectl("-n", NAMESPACE, "scale", "fis/llama", "--replicas=4")
    assert api.get(stored).json()["spec"]["engine"]["replicas"] == 4
    scale = api.get(f"{stored}/scale").json()
    assert scale["spec"] == {"replicas": 4}
    assert scale["status"] == {"replicas": 1, "selector": "a=b"}


@pytest.mark.core
def test_scaling_beside_autoscaling_is_refused_by_the_same_rule(
    api: httpx.Client, kubectl: Kubectl, stored: str
) -> None:
    scaling = {"maxReplicas": 4, "prometheus": {"url": "http://prometheus"}}
    assert patched(api, stored, {"spec": {"autoscaling": scaling}}).is_success
    with pytest.raises(KubectlError, match="is set together with autoscaling; remove one"):
        kubectl("-n", NAMESPACE, "scale", "fis/llama", "--replicas=4")


@pytest.mark.core
def test_a_tenants_clients_merge_by_name_when_two_managers_apply(
    api: httpx.Client, kubectl: Kubectl
) -> None:
    for manager, client in (("one", "chat"), ("two", "batch")):
        document = changed(TENANT, {"spec": {"clients": [{"name": client}]}})
        arguments = ("-n", NAMESPACE, "apply", "--server-side", f"--field-manager={manager}")
        kubectl(*arguments, "-f", "-", stdin=json.dumps(document))
    seen = kubectl.get("-n", NAMESPACE, "itn", "ads")
    assert [client["name"] for client in seen["spec"]["clients"]] == ["chat", "batch"]
    kubectl("-n", NAMESPACE, "delete", "itn", "ads")


@pytest.mark.core
def test_samples_apply_once_and_both_kinds_are_in_the_category(kubectl: Kubectl) -> None:
    samples = sorted((CRDS / "samples").glob("*.yaml"))
    arguments = [part for path in samples for part in ("-f", str(path))]
    for _ in range(2):  # the second time stores the default of the status, as any first write does
        kubectl("-n", NAMESPACE, "apply", "--server-side", *arguments)
    before = kubectl.get("-n", NAMESPACE, "evenkeel")
    kubectl("-n", NAMESPACE, "apply", "--server-side", *arguments)
    assert kubectl.get("-n", NAMESPACE, "evenkeel")["items"] == before["items"]
    listed = {item["metadata"]["name"] for item in before["items"]}
    assert listed == {
        document["metadata"]["name"]
        for path in samples
        for document in yaml.safe_load_all(path.read_text())
    }
    kubectl("-n", NAMESPACE, "delete", *arguments)


@pytest.mark.core
def test_kubectl_explains_every_field(kubectl: Kubectl) -> None:
    explained = kubectl("explain", "fis.spec.scheduling.clientQuantum")
    assert "Weighted tokens that a client receives per refill within a replica" in " ".join(
        explained.split()
    )


@pytest.mark.core
def test_an_unknown_field_is_named_by_kubectl(kubectl: Kubectl) -> None:
    document = changed(SERVICE, {"spec.engine.replica": 3})
    with pytest.raises(KubectlError, match=r'unknown field "spec\.engine\.replica"'):
        kubectl(
            "-n", NAMESPACE, "create", "--dry-run=server", "-f", "-", stdin=json.dumps(document)
        )
