"""The chart on clusters of other teams: without rights in the cluster, on OpenShift, behind proxies, from a registry of their own."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from evenkeel_operator.settings import Settings, parse_arguments

from tests.support.helm import CHART, REGISTRY, only, rendered, template
from tests.support.operator_rights import namespaced_rules

NAMESPACED = {
    "rbac": {"clusterScoped": False},
    "watchNamespaces": ["a", "b"],
    "crds": {"enabled": False},
}
OPENSHIFT = ("--api-versions", "security.openshift.io/v1")
ENVIRONMENT = {"POD_NAME": "pod", "POD_NAMESPACE": "evenkeel-system"}


def settings(*options: str, **values: Any) -> Settings:
    """What the operator reads from the arguments that the chart gives it."""
    (container,) = pod(*options, **values)["containers"]
    return parse_arguments(container["args"], ENVIRONMENT)


def pod(*options: str, **values: Any) -> dict[str, Any]:
    found: dict[str, Any] = only(rendered(*options, **values), "Deployment")["spec"]["template"]
    spec: dict[str, Any] = found["spec"]
    return spec


def test_without_rights_in_the_cluster_no_object_is_outside_of_namespaces() -> None:
    objects = rendered(**NAMESPACED)
    assert [one for one in objects if "namespace" not in one["metadata"]] == []
    for namespace in ("a", "b"):
        (role,) = (
            one
            for one in objects
            if one["kind"] == "Role" and one["metadata"]["namespace"] == namespace
        )
        assert _granted(role["rules"]) == _granted(namespaced_rules())
    assert not settings(**NAMESPACED).has_overview
    assert settings(**NAMESPACED).watched_namespaces == ("a", "b")


def _granted(rules: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_an_administrator_may_create_the_roles() -> None:
    kinds = {one["kind"] for one in rendered(**{**NAMESPACED, "rbac": {"clusterScoped": False, "create": False}})}  # fmt: skip
    assert "Role" not in kinds
    assert {"ServiceAccount", "Deployment"} <= kinds


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"watchNamespaces": []}, "watchNamespaces is needed"),
        ({"crds": {"enabled": True}}, "set crds.enabled to false"),
        ({"reservedFields": {"enabled": True}}, "set reservedFields.enabled to false"),
    ],
)
def test_what_needs_rights_in_the_cluster_is_refused_without(
    values: dict[str, Any], fault: str
) -> None:
    assert fault in template(**{**NAMESPACED, **values})[1]


SECTIONS = re.findall(r'"([\w.]+)"', re.findall(r"\$path := list (.*?) -", (CHART / "templates/_helpers.tpl").read_text())[0])  # fmt: skip


@pytest.mark.parametrize("path", SECTIONS)
def test_null_for_a_section_is_refused_with_its_name(path: str) -> None:
    value: Any = None
    for name in reversed(path.split(".")):
        value = {name: value}
    text, fault = template(**value)
    assert not text
    assert f"{path} is null" in fault


def test_null_for_any_other_section_means_its_defaults() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    usual = rendered()
    others = {name for name, value in values.items() if isinstance(value, dict)} - set(SECTIONS)
    assert {"rbac", "secrets", "proxy", "podSecurityContext", "router"} <= others
    for name in others - {"resources", "router"}:  # none is a choice there
        assert rendered(**{name: None}) == usual, name


def test_names_labels_and_annotations_reach_every_object() -> None:
    labels, notes = {"cost-center": "42", "app.kubernetes.io/name": "mine"}, {"owner": "platform"}
    objects = rendered(
        fullnameOverride="fair",
        commonLabels=labels,
        commonAnnotations=notes,
        podLabels={"cost-center": "7", "team": "x"},
        serviceAccount={"annotations": {"owner": "theirs", "role": "arn"}},
        metrics={"dashboards": {"enabled": True}, "plain": {"enabled": True}},
        reservedFields={"enabled": True},
        crds={"enabled": False},
    )
    tests = {"fair-test"}
    for one in objects:
        metadata = one["metadata"]
        assert metadata["name"].startswith("fair"), one["kind"]
        if metadata["name"] in tests:
            continue
        assert metadata["labels"]["cost-center"] == "42", one["kind"]
        assert metadata["labels"]["app.kubernetes.io/name"] == "evenkeel-operator"
        assert metadata["annotations"]["owner"] in ("platform", "theirs"), one["kind"]
    account = only(objects, "ServiceAccount")["metadata"]["annotations"]
    assert account == {"owner": "theirs", "role": "arn"}
    pod = only(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert (pod["cost-center"], pod["team"]) == ("42", "x")


def test_the_operator_gets_further_variables() -> None:
    extra = [{"name": "A", "value": "b"}, {"name": "C", "valueFrom": {"fieldRef": {}}}]
    (container,) = pod(extraEnv=extra)["containers"]
    assert container["env"][-2:] == extra


@pytest.mark.parametrize(
    ("options", "chosen", "fixed"),
    [
        ((), "Auto", True),
        (OPENSHIFT, "Auto", False),
        (OPENSHIFT, "Always", True),
        ((), "Never", False),
    ],
)
def test_pods_have_a_fixed_user_except_on_openshift(
    options: tuple[str, ...], chosen: str, fixed: bool
) -> None:
    objects = rendered(*options, fixedUser=chosen)
    for spec in (
        only(objects, "Deployment")["spec"]["template"]["spec"],
        only(objects, "Pod")["spec"],
    ):
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True
        assert ("runAsUser" in context, "runAsGroup" in context) == (fixed, fixed)
    assert settings(*options, fixedUser=chosen).defaults.fixed_user is fixed


def test_fields_of_security_contexts_are_added_replaced_and_removed() -> None:
    context = {"runAsUser": None, "runAsGroup": 7, "supplementalGroups": [9]}
    found = pod(podSecurityContext=context, securityContext={"privileged": False})
    assert found["securityContext"] == {
        "runAsNonRoot": True,
        "runAsGroup": 7,
        "supplementalGroups": [9],
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    (container,) = found["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
    }


def test_proxies_are_for_replicas_and_not_for_the_cluster() -> None:
    proxy = {"https": "http://proxy:3128", "noProxy": ["10.0.0.0/8", ".corp"]}
    defaults = settings(proxy=proxy, clusterDomain="k8s.corp").defaults
    direct = "localhost,127.0.0.1,::1,.svc,.svc.k8s.corp,10.0.0.0/8,.corp"
    assert defaults.engine_variables == {
        "HTTPS_PROXY": "http://proxy:3128",
        "https_proxy": "http://proxy:3128",
        "NO_PROXY": direct,
        "no_proxy": direct,
    }
    assert defaults.cluster_domain == "k8s.corp"
    assert settings().defaults.engine_variables == {}


def test_every_image_is_from_the_one_registry() -> None:
    text = json.dumps(rendered(images={"registry": "mirror.corp:5000/x"}))
    images = re.findall(r"[\w.:/-]+/(?:operator|router|sglang|vllm|simulator)[:@][\w.:-]+", text)
    assert len(images) == 7  # that of the operator three times
    assert all(one.startswith("mirror.corp:5000/x/") for one in images)
    assert REGISTRY not in text
