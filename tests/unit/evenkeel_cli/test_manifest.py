"""Files of resources: their contents, and every fault with file, line, document and path."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from evenkeel_cli.faults import ManifestFaults
from evenkeel_cli.ignored_fields import OF_ENGINES, OF_SIMULATOR, ignored_fields
from evenkeel_cli.manifest import Manifest, load_manifest, parse_manifest

from tests.support.sample_documents import SERVICE, TENANT

SECRET = """\
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {chat: sk-chat}
"""


def read(*documents: str) -> Manifest:
    return parse_manifest("---\n".join(documents).encode(), "f.yaml")


def faults(*documents: str) -> list[str]:
    with pytest.raises(ManifestFaults) as caught:
        read(*documents)
    return [str(fault) for fault in caught.value.faults]


def test_a_good_file_gives_service_tenants_and_keys() -> None:
    manifest = read(SERVICE, TENANT, SECRET)
    assert manifest.service.metadata.name == "sample"
    assert [tenant.metadata.name for tenant in manifest.tenants] == ["ads"]
    assert list(manifest.api_keys()) == [("ads/chat", "sk-chat")]
    want = hashlib.sha256(b"sk-chat").hexdigest()
    assert manifest.key_hashes == {("default", "keys", "chat"): want}
    assert manifest.warnings == ()


def test_a_secret_may_have_its_entries_in_base64() -> None:
    manifest = read(
        SERVICE, TENANT, SECRET.replace("stringData: {chat: sk-chat}", "data: {chat: c2st}")
    )
    assert list(manifest.api_keys()) == [("ads/chat", "sk-")]


GATEWAY = """apiVersion: evenkeel.dev/v1alpha1
kind: FairInferenceGateway
metadata: {{name: all}}
spec:
  models: [{0}]
"""
CASES: Mapping[str, tuple[tuple[str, ...], list[str]]] = {
    "faults of several documents, each with its line": (
        (
            SERVICE.replace("replicas: 2", "replicas: two"),
            TENANT.replace("weight: 4", "weigth: 4").replace("client: chat", "client: cat"),
            SECRET,
        ),
        [
            (
                "f.yaml:6: document 1 (FairInferenceService sample) spec.engine.replicas: must be an "
                "integer, not 'two'"
            ),
            (
                "f.yaml:12: document 2 (InferenceTenant ads) spec.weigth: unknown field; did you mean "
                "weight?"
            ),
            (
                "f.yaml:15: document 2 (InferenceTenant ads) spec.apiKeys[0].client: 'cat' is not in "
                "spec.clients; did you mean chat?"
            ),
        ],
    ),
    "every fault of every document, in the order of the file": (
        (
            SECRET.replace("chat: sk-chat", "other: 5"),
            TENANT.replace("weight: 4", "weight: none") + "  limits: {maxConcurent: 1}\n",
            SERVICE.replace(
                "replicas: 2", "replicas: two, args: [--profile=tpu, --port=1, --fast]"
            ),
            TENANT.replace("ads", "seo").replace("name: keys", "name: lost"),
            TENANT.replace("ads", "seo").replace("weight: 4", "weight: 4\n  weight: 5"),
        ),
        [
            'f.yaml:4: document 1 (Secret keys) stringData.other: must be a string, not 5; put it in quotes ("…")',
            "f.yaml:10: document 2 (InferenceTenant ads) spec.weight: must be an integer, not 'none'",
            (
                "f.yaml:14: document 2 (InferenceTenant ads) spec.limits.maxConcurent: unknown field; "
                "did you mean maxConcurrent?"
            ),
            (
                "f.yaml:21: document 3 (FairInferenceService sample) spec.engine.replicas: must be an "
                "integer, not 'two'"
            ),
            (
                "f.yaml:21: document 3 (FairInferenceService sample) spec.engine.args[0]: argument "
                "--profile: 'tpu' is neither one of a10g-llama2-7b, a100-llama2-13b, "
                "a100-llama3.1-8b, a10g-llama3.2-3b, a10g-llama2-7b-slora nor a file that can be read"
            ),
            (
                "f.yaml:21: document 3 (FairInferenceService sample) spec.engine.args[1]: --port is "
                "set by Evenkeel from the rest of the spec; remove it"
            ),
            (
                "f.yaml:21: document 3 (FairInferenceService sample) spec.engine.args[2]: "
                "unrecognized arguments: --fast"
            ),
            (
                "f.yaml:30: document 4 (InferenceTenant seo) spec.apiKeys[0].secretRef: no Secret "
                "default/lost with an entry 'chat' in this file; add a document of kind Secret with "
                "stringData"
            ),
            "f.yaml:34: document 5 (InferenceTenant seo) metadata.name: 'seo' is given twice",
            "f.yaml:37: 'weight' is given twice in one mapping",
        ],
    ),
    "a Secret with an unknown name may be the missing one": (
        (SERVICE, TENANT, SECRET.replace("{name: keys}", "{}")),
        ["f.yaml:19: document 3 (Secret) metadata.name: is required"],
    ),
    "a Secret with a misspelt kind may be the missing one": (
        (SERVICE, TENANT, SECRET.replace("Secret", "Secrets")),
        [("f.yaml:18: document 3 (Secrets keys) kind: 'Secrets' is unknown; did you mean Secret?")],
    ),
    "an empty file": (("",), ["f.yaml: contains no FairInferenceService"]),
    "no service": ((TENANT, SECRET), ["f.yaml: contains no FairInferenceService"]),
    "two services": (
        (SERVICE, SERVICE.replace("sample", "other")),
        [
            (
                "f.yaml:9: document 2 (FairInferenceService other) kind: several services need a "
                "FairInferenceGateway in the file; add it, or remove this service"
            )
        ],
    ),
    "a gateway without one of the services": (
        (
            SERVICE,
            SERVICE.replace("sample", "other"),
            GATEWAY.format("{serviceRef: {name: sample}}"),
        ),
        [
            (
                "f.yaml:19: document 3 (FairInferenceGateway all) spec.models: has no model of service 'other'; "
                "add it, or remove the service"
            )
        ],
    ),
    "a gateway of a service that is not there": (
        (SERVICE, GATEWAY.format("{serviceRef: {name: sample}}, {serviceRef: {name: smaple}}")),
        [
            (
                "f.yaml:12: document 2 (FairInferenceGateway all) spec.models[1].serviceRef.name: "
                "no FairInferenceService default/smaple in this file"
            )
        ],
    ),
    "two services with one model name": (
        (SERVICE, SERVICE.replace("sample", "other"), GATEWAY.format("{serviceSelector: {}}")),
        [
            (
                "f.yaml:19: document 3 (FairInferenceGateway all) spec.models: 'model' is a model of other and of "
                "sample; give one of them another name"
            )
        ],
    ),
    "two gateways": (
        (SERVICE, GATEWAY.format("{serviceSelector: {}}"), GATEWAY.format("{serviceSelector: {}}")),
        [
            (
                "f.yaml:15: document 3 (FairInferenceGateway all) kind: a file may contain one "
                "FairInferenceGateway only; remove this one"
            )
        ],
    ),
    "a tenant twice": (
        (SERVICE, TENANT.split("  apiKeys")[0], TENANT.split("  apiKeys")[0]),
        ["f.yaml:17: document 3 (InferenceTenant ads) metadata.name: 'ads' is given twice"],
    ),
    "a model's token without its Secret": (
        (
            SERVICE.replace("Simulator", "SGLang").replace(
                "{source:", "{tokenSecretRef: {name: hub, key: token}, source:"
            ),
        ),
        [
            (
                "f.yaml:5: document 1 (FairInferenceService sample) spec.model.tokenSecretRef: no "
                "Secret default/hub with an entry 'token' in this file; add a document of kind "
                "Secret with stringData"
            )
        ],
    ),
    "a key without its Secret": (
        (SERVICE, TENANT),
        [
            (
                "f.yaml:15: document 2 (InferenceTenant ads) spec.apiKeys[0].secretRef: no Secret "
                "default/keys with an entry 'chat' in this file; add a document of kind Secret with "
                "stringData"
            )
        ],
    ),
    "a key of two clients": (
        (
            SERVICE,
            TENANT,
            TENANT.replace("ads", "seo"),
            SECRET,
        ),
        [
            (
                "f.yaml:24: document 3 (InferenceTenant seo) spec.apiKeys[0].secretRef: has the same "
                "key as ads/k; one key identifies one client"
            )
        ],
    ),
    "a key that is not allowed in a header": (
        (SERVICE, TENANT, SECRET.replace("sk-chat", '"a b"')),
        [
            (
                "f.yaml:15: document 2 (InferenceTenant ads) spec.apiKeys[0].secretRef: the key must "
                "be ASCII without spaces or control characters"
            )
        ],
    ),
    "a Secret that is not base64": (
        (SERVICE, SECRET.replace("stringData: {chat: sk-chat}", "data: {chat: '%'}")),
        [
            (
                "f.yaml:11: document 2 (Secret keys) data.chat: is not text in base64; use "
                "stringData for plain text"
            )
        ],
    ),
    "a misspelt kind": (
        (SERVICE, TENANT.replace("InferenceTenant", "InferenceTennant")),
        [
            (
                "f.yaml:9: document 2 (InferenceTennant ads) kind: 'InferenceTennant' is unknown; did "
                "you mean InferenceTenant?"
            )
        ],
    ),
    "a document without a kind": (
        (SERVICE, "a: 1\n"),
        [
            "f.yaml:8: document 2 kind: must be one of FairInferenceService, InferenceTenant, FairInferenceGateway, Secret, not null"
        ],
    ),
    "a document that is not a mapping": (
        (SERVICE, "- 1\n"),
        ["f.yaml:8: document 2 document: must be a resource with apiVersion and kind, not a list"],
    ),
    "a key given twice in YAML": (
        (SERVICE + "  engine: {}\n",),
        ["f.yaml:7: 'engine' is given twice in one mapping"],
    ),
    "invalid YAML": (("a: [1\n",), ["f.yaml:2: expected ',' or ']', but got '<stream end>'"]),
}


@pytest.mark.parametrize(("documents", "want"), CASES.values(), ids=CASES.keys())
def test_faults_of_a_file(documents: tuple[str, ...], want: list[str]) -> None:
    assert faults(*documents) == want


def test_a_file_cannot_build_objects() -> None:
    (line,) = faults("!!python/object:os.system {}\n")
    assert line.startswith("f.yaml:1: could not determine a constructor")


@pytest.mark.parametrize(
    "data",
    [b"\xff\xfe\x00", b"[" * 5000, b"a: 0x\nb: *c", b"a: !!int 0x", b"\x00", b"a" * (5 << 20)],
    ids=["not text", "deep", "unknown anchor", "no number", "a control character", "too long"],
)
def test_an_unreadable_file_is_reported_in_one_line(data: bytes) -> None:
    with pytest.raises(ManifestFaults) as caught:
        parse_manifest(data, "f.yaml")
    (line,) = map(str, caught.value.faults)
    assert line.startswith("f.yaml")


def test_a_missing_file_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ManifestFaults, match="none.yaml: cannot be read: No such file"):
        load_manifest(tmp_path / "none.yaml")


REDIS = "  router: {state: {store: Redis, redis: {urlSecretRef: {name: redis, key: url}}}}\n"


def test_the_fault_of_external_engines_names_the_other_command() -> None:
    external = "{runtime: External, external: {selector: {matchLabels: {a: b}}, port: 1}}"
    document = SERVICE.replace("{runtime: Simulator, replicas: 2}", external)
    (fault,) = faults(document)
    assert "sample) spec.engine.runtime: External selects pods of a cluster" in fault
    assert "`evenkeel route`" in fault


def test_the_file_must_contain_the_address_of_the_store() -> None:
    with pytest.raises(ManifestFaults) as caught:
        read(SERVICE + REDIS)
    (line,) = map(str, caught.value.faults)
    assert (
        "spec.router.state.redis.urlSecretRef: no Secret default/redis with an entry 'url'" in line
    )
    secret = "kind: Secret\napiVersion: v1\nmetadata: {name: redis}\nstringData: {url: redis://h}\n"
    assert read(SERVICE + REDIS, secret).secrets[("default", "redis", "url")] == "redis://h"


CELLS = """  federation:
    cell: paris
    tokenSecretRef: {name: cells, key: token}
    caSecretRef: {name: cells, key: ca}
    cells: [{name: oslo, url: "https://oslo"}]
"""


def test_the_file_must_contain_the_token_and_the_certificates_of_other_cells() -> None:
    refs = ("tokenSecretRef", "caSecretRef")
    for line, name in zip(faults(SERVICE + CELLS), refs, strict=True):
        assert f"spec.federation.{name}: no Secret default/cells with an entry" in line
    secret = (
        "kind: Secret\napiVersion: v1\nmetadata: {name: cells}\nstringData: {token: short, ca: c}\n"
    )
    unusable = faults(SERVICE + CELLS, secret)
    assert "spec.federation.tokenSecretRef: names an entry that is no token" in unusable[0]
    assert "spec.federation.caSecretRef: names an entry that has no certificate" in unusable[1]
    pem = '"-----BEGIN CERTIFICATE-----\\nTUlJQg==\\n-----END CERTIFICATE-----"'
    good = secret.replace("short", '"a token of all cells\\n"').replace("ca: c", f"ca: {pem}")
    cells = read(SERVICE + CELLS, good).cells
    assert cells is not None
    assert (cells.token, (cells.ca or "")[:10]) == ("a token of all cells", "-----BEGIN")
    assert read(SERVICE).cells is None
    (fault,) = faults(SERVICE + CELLS, good, GATEWAY.format("{serviceSelector: {}}"))
    assert "spec.federation: routers of several services have no other cells" in fault


def test_a_service_that_may_scale_to_zero_gets_one_replica_and_a_warning() -> None:
    service = SERVICE.replace(", replicas: 2", "") + (
        "  router: {limits: {activationTimeout: 60s}}\n"
        "  autoscaling: {minReplicas: 0, maxReplicas: 2, prometheus: {url: http://p:9090}}\n"
    )
    manifest = read(service, TENANT, SECRET)
    assert manifest.service.spec.initial_replicas == 1
    assert manifest.warnings == (
        "spec.router.limits.activationTimeout has no effect here: a local fleet does not scale to or from zero",
        "spec.autoscaling has no effect here: a local fleet does not scale; it runs minReplicas, at least 1",
    )


@pytest.mark.parametrize(
    ("runtime", "some"), [("Simulator", OF_SIMULATOR), ("SGLang", OF_ENGINES), ("vLLM", OF_ENGINES)]
)
def test_which_fields_have_no_effect_depends_on_the_runtime(
    runtime: str, some: Mapping[str, str]
) -> None:
    paths = {*OF_SIMULATOR, *OF_ENGINES}
    spec: dict[str, Any] = {"engine": {"runtime": runtime}}
    for path in paths:
        *folders, name = path.split(".")[1:]
        node = spec
        for folder in folders:
            node = node.setdefault(folder, {})
        node.setdefault(name, {})
    want = {f"{path} has no effect here: {reason}" for path, reason in some.items()}
    assert {one for one in ignored_fields({"spec": spec}) if one.split()[0] in paths} == want


def test_fields_without_effect_are_reported() -> None:
    service = SERVICE + (
        "  router: {replicas: 3, prefix: {mode: Tokens}}\n"
        "  exposure: {ingress: {host: a.b}, cors: {allowOrigins: ['http://a.b']}}\n"
        "  slo: {}\n"
    )
    other = TENANT.replace("{name: ads}", "{name: ads, namespace: elsewhere}").split("  apiKeys")[0]
    warnings = read(service, other, "kind: Namespace\n").warnings
    assert warnings == (
        "spec.slo has no effect here: a local fleet does not evaluate objectives",
        "spec.exposure.ingress has no effect here: the router listens on this machine only",
        "document 3: kind Namespace is ignored",
        (
            "InferenceTenant elsewhere/ads is not served: it has another namespace, or "
            "spec.tenancy.selector does not match it"
        ),
    )


def test_a_gateway_names_its_services_models_and_tenants() -> None:
    other = SERVICE.replace("sample", "other")
    models = "{name: smart, serviceRef: {name: other}}, {serviceRef: {name: sample}}"
    text = "---\n".join((SERVICE, other, GATEWAY.format(models), TENANT.split("  apiKeys")[0]))
    manifest = parse_manifest(text.encode(), "f.yaml")
    assert manifest.identity == ("default", "all")
    assert [one.metadata.name for one in manifest.services] == ["sample", "other"]
    assert manifest.models == ("smart", "model")
    assert [tenant.metadata.name for tenant in manifest.tenants] == ["ads"]
    assert [one.service.metadata.name for one in manifest.each()] == ["sample", "other"]
