"""The chart: every value is described, refused when misspelt, and does what it says."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from evenkeel_operator.core.records import ROUTER_RESOURCES
from evenkeel_operator.settings import parse_arguments

from tests.support.helm import CHART, REGISTRY, only, rendered, template
from tests.support.operator_rights import cluster_rules, lease_rules
from tests.support.promtool import promtool

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
ENVIRONMENT = {"POD_NAME": "pod", "POD_NAMESPACE": "evenkeel-system"}


def test_chart_programs_and_images_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    root = CHART.parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]
    for path in filter(Path.is_file, (root / "images").iterdir()):
        named = re.findall(r"registry\.example\.com/evenkeel/\w+:(\S+)", path.read_text())
        assert set(named) <= {project["version"]}, path


def paths(values: Any, schema: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is declared, with its schema."""
    for name, value in values.items():
        where = f"{path}.{name}".lstrip(".")
        found = schema["properties"].get(name)
        yield where, found
        if isinstance(value, dict) and found and "properties" in found:
            yield from paths(value, found, where)


def test_the_schema_describes_every_value_and_no_others() -> None:
    for path, schema in paths(VALUES, SCHEMA):
        assert schema is not None, path
        assert schema.get("description"), path
        if "properties" in schema:
            assert schema["additionalProperties"] is False, path
    assert set(SCHEMA["properties"]) - {"global"} == set(VALUES)


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"replica": 1}, "replica"),
        ({"images": {"registry": REGISTRY, "router": {"tga": "1"}}}, "tga"),
        ({"images": {"registry": ""}}, "images.registry is not set"),
        ({"images": {"registry": "https://r.io/e"}}, "/images/registry"),
        ({"images": {"registry": "R.io/E"}}, "/images/registry"),
        ({"images": {"registry": "r.io//e"}}, "/images/registry"),
        ({"images": {"registry": "r.io/e:1"}}, "/images/registry"),
        ({"images": {"registry": REGISTRY, "router": {"repository": "Router"}}}, "repository"),
        ({"resources": {"limits": {"memory": "lots"}}}, "/resources/limits/memory"),
        ({"resources": {"requests": {"cpu": "-1"}}}, "/resources/requests/cpu"),
        ({"resources": {"requests": {"cpu": -1}}}, "/resources/requests/cpu"),
        ({"resources": {"limit": {"memory": "1Gi"}}}, "limit"),
        ({"metrics": {"prometheusRule": {"enabled": True}}}, "needs metrics.podMonitor.enabled"),
        ({"logLevel": "loud"}, "logLevel"),
        ({"watchNamespaces": ["Team A"]}, "watchNamespaces"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name is not set"),
        ({"images": {"registry": REGISTRY, "router": {"digest": "sha256:1"}}}, "digest"),
    ],
)
def test_a_value_that_cannot_be_is_refused_and_named(values: dict[str, Any], fault: str) -> None:
    text, said = template(**values)
    assert not text
    assert fault in said


@pytest.mark.parametrize(
    "registry",
    ["r.io/e/", "localhost:5000", "10.0.0.1:5000/a/b_c", "[::1]:5000/e", "some-one", "a__b/c-d.e"],
)
def test_a_registry_is_a_name_with_or_without_port_and_path(registry: str) -> None:
    objects = rendered(images={"registry": registry}, crds={"enabled": False})
    pod = only(objects, "Deployment")["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"].startswith(f"{registry.rstrip('/')}/operator:")


def test_quantities_are_those_of_kubernetes() -> None:
    given = {
        "requests": {"cpu": 1, "memory": "128Mi", "example.com/nic": "1"},
        "limits": {"cpu": "1.5", "memory": "1e9", "ephemeral-storage": "2G"},
    }
    objects = rendered(resources=given, crds={"enabled": False})
    pod = only(objects, "Deployment")["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == given


def arguments(**values: Any) -> list[str]:
    container = only(rendered(**values), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    found: list[str] = container["args"]
    return found


def test_the_operator_takes_what_the_chart_gives_it() -> None:
    images = {"registry": REGISTRY + "/", "tag": "2.0", "pullPolicy": "Always", "pullSecrets": ["s"],
              "router": {"digest": "sha256:" + "0" * 64}, "simulator": {"tag": "3.0"}}  # fmt: skip
    settings = parse_arguments(
        arguments(
            images=images,
            watchNamespaces=["a", "b"],
            allowPrometheus=["http://prometheus.monitoring:9090"],
            metrics={
                "scraperNamespaceLabels": {"kubernetes.io/metadata.name": "monitoring"},
                "labels": {"release": "prometheus"},
                "runbooks": "https://runbooks.example.com",
            },
            workers=7,
            logLevel="debug",
        ),
        ENVIRONMENT,
    )
    defaults = settings.defaults
    assert defaults.router_image == f"{REGISTRY}/router@sha256:{'0' * 64}"
    assert defaults.sglang_image == f"{REGISTRY}/sglang:2.0"
    assert defaults.vllm_image == f"{REGISTRY}/vllm:2.0"
    assert defaults.simulator_image == f"{REGISTRY}/simulator:3.0"
    assert (defaults.pull_policy, defaults.pull_secrets) == ("Always", ("s",))
    assert defaults.prometheus_urls == ("http://prometheus.monitoring:9090",)
    assert defaults.scrapers == {"kubernetes.io/metadata.name": "monitoring"}
    assert defaults.monitoring.labels == {"release": "prometheus"}
    assert defaults.monitoring.runbooks == "https://runbooks.example.com"
    assert settings.watched_namespaces == ("a", "b")
    assert (settings.lease, settings.workers, settings.log_level) == ("evenkeel", 7, "debug")


def test_routers_let_the_operator_in_by_the_labels_that_the_chart_gives_it() -> None:
    labels = only(rendered(), "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "evenkeel-operator"


def test_the_api_is_installed_and_kept_by_default() -> None:
    def definitions(**crds: bool) -> list[dict[str, Any]]:
        objects = rendered(crds=crds)
        return [one for one in objects if one["kind"] == "CustomResourceDefinition"]

    kept, given_up = definitions(), definitions(keep=False)
    assert len(kept) == len(given_up) == 3
    for one in kept:
        assert one["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert kept == given_up
    sources = sorted((CHART.parents[1] / "crds").glob("*.yaml"))
    assert kept == [yaml.safe_load(path.read_text()) for path in sources]
    assert definitions(enabled=False) == []


def test_the_operators_rights_are_those_that_its_code_names() -> None:
    def granted(rules: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
        return {
            (group, resource, verb)
            for rule in rules
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    objects = rendered()
    assert granted(only(objects, "ClusterRole", "evenkeel")["rules"]) == granted(cluster_rules())
    lease = only(objects, "Role", "evenkeel-lease")["rules"]
    assert granted(lease) == granted(lease_rules())
    assert [rule.get("resourceNames") for rule in lease] == [["evenkeel"], None]


def test_with_a_list_of_namespaces_the_rights_end_there() -> None:
    objects = rendered(watchNamespaces=["a", "b"])
    everywhere = only(objects, "ClusterRole", "evenkeel")["rules"]
    assert [rule["resources"] for rule in everywhere] == [
        ["nodes"],
        ["ingressclasses"],
        ["namespaces"],
        ["customresourcedefinitions"],
    ]
    roles = [
        one["metadata"]["namespace"]
        for one in objects
        if one["kind"] == "Role" and one["metadata"]["name"] == "evenkeel"
    ]
    assert roles == ["a", "b"]
    assert only(objects, "ClusterRoleBinding")["subjects"][0]["namespace"] == "evenkeel-system"


def test_the_built_in_roles_do_not_allow_changes_of_tenants() -> None:
    edit = only(rendered(), "ClusterRole", "evenkeel-edit")["rules"]
    assert all("inferencetenants" not in rule["resources"] for rule in edit)


def test_only_roles_that_may_create_pods_may_create_services() -> None:
    """Which of the built-in roles may create pods: edit and admin, and not view."""
    aggregate = "rbac.authorization.k8s.io/aggregate-to-"
    writers = set()
    for role in (one for one in rendered() if one["kind"] == "ClusterRole"):
        verbs = {verb for rule in role["rules"] for verb in rule["verbs"]}
        for label in role["metadata"]["labels"]:
            if label.startswith(aggregate) and not verbs <= {"get", "list", "watch"}:
                writers.add(label.removeprefix(aggregate))
    assert writers == {"edit", "admin"}


def test_everything_that_may_be_left_out_can_be() -> None:
    objects = rendered(
        replicas=1,
        crds={"enabled": False},
        networkPolicy={"enabled": False},
        serviceAccount={"create": False, "name": "mine"},
    )
    assert not {"NetworkPolicy", "PodDisruptionBudget", "ServiceAccount", "PodMonitor"} & {
        one["kind"] for one in objects
    }
    pod = only(objects, "Deployment")["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "mine"


def test_an_upgrade_with_the_values_of_the_previous_chart_gets_the_defaults() -> None:
    """`helm upgrade --reuse-values` has none of the values that are new."""
    new = {"router": None, "secrets": None, "allowPrometheusNamespaces": None}
    found = parse_arguments(arguments(**new, metrics={"plain": None}), ENVIRONMENT).defaults
    assert found.router_resources == ROUTER_RESOURCES
    assert not found.any_secret
    assert parse_arguments(
        arguments(secrets={"requireLabel": False}), ENVIRONMENT
    ).defaults.any_secret


def test_dashboards_come_where_grafanas_sidecar_looks_for_them() -> None:
    objects = rendered(
        metrics={
            "dashboards": {
                "enabled": True,
                "namespace": "grafana",
                "annotations": {"grafana_folder": "Evenkeel"},
            }
        }
    )
    maps = [one for one in objects if one["kind"] == "ConfigMap"]
    assert {name for one in maps for name in one["data"]} == {
        "evenkeel-engines.json",
        "evenkeel-fairness.json",
        "evenkeel-router.json",
    }
    for one in maps:
        assert one["metadata"]["namespace"] == "grafana"
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert one["metadata"]["annotations"] == {"grafana_folder": "Evenkeel"}
        (text,) = one["data"].values()
        assert json.loads(text)["panels"]


def test_a_prometheus_without_its_operator_gets_files(tmp_path: Path) -> None:
    objects = rendered(metrics={"plain": {"enabled": True, "namespace": "monitoring"}})
    found = only(objects, "ConfigMap", "evenkeel-prometheus")
    assert found["metadata"]["namespace"] == "monitoring"
    assert "--plain-rules" in arguments(metrics={"plain": {"enabled": True}})
    scrapes = yaml.safe_load(found["data"]["scrape.yaml"])["scrape_configs"]
    operator = scrapes[-1]["relabel_configs"]
    assert operator[-1] == {"target_label": "job", "replacement": "evenkeel-system/evenkeel"}
    assert "@{" not in str(found["data"])
    path = tmp_path / "rules.yaml"
    path.write_text(found["data"]["rules.yaml"])
    code, said = promtool("check", "rules", path)
    assert code == 0, said


MONITORED = {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}


def test_the_operators_alerts_are_about_this_release() -> None:
    rule = only(rendered(metrics=MONITORED), "PrometheusRule")
    texts = [one["expr"] for group in rule["spec"]["groups"] for one in group["rules"]]
    assert len(texts) == 4
    for text in texts:
        assert 'namespace="evenkeel-system",job="evenkeel-system/evenkeel"' in text
