"""Every field of both specs on a real cluster: what another value of it changes among the objects that the API server holds.

The fields are those of the schema, and what each is to change is in `tests/golden/effects.yaml`, where a cluster in memory
has said the same. The core changes many fields at once, since their effects add up; the rest changes one after another.
Fields by which the scaler decides are given figures with which they make a difference at once. No pod starts here; what
fields do in pods is in `test_fields_at_work.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import httpx
import pytest
import yaml
from evenkeel_operator.core.recommendation import Sample

from e2e.figures import Question, figures, samples_of
from e2e.installed import Namespace
from e2e.installed import namespace as namespace_of
from e2e.kubectl import Kubectl
from e2e.objects import Objects, prepare, settled
from e2e.operators import wait_until
from e2e.optionalapis import are_there
from tests.support.crd_documents import SCALED, SERVICE, TENANT, Changes, Document, changed
from tests.support.effects import CASES, TABLE, Case, Place, fields_of, summary
from tests.support.effects_together import Together, together
from tests.support.fake_prometheus import answers

pytestmark = pytest.mark.timeout(300)

WANT: Final[Mapping[str, Mapping[str, list[str]]]] = yaml.safe_load(TABLE.read_text())
IN_OBJECTS: Final = {
    kind: {
        name: [line for line in lines if not line.startswith("Scaler ")]
        for name, lines in of_kind.items()
    }
    for kind, of_kind in WANT.items()
}
"""Expected changes, except decisions that follow measurements."""


def in_objects(case: Case) -> list[str]:
    return IN_OBJECTS[case.kind][case.field]


def is_decided(case: Case) -> bool:
    """Whether the scaler's decisions are what the field of a service is about."""
    return case.kind == SCALED["kind"] and in_objects(case) != WANT[case.kind][case.field]


@pytest.fixture(scope="module")
def optional(evenkeel: None, kubectl: Kubectl) -> None:
    """All the APIs that are made use of."""
    if not are_there(kubectl):
        pytest.skip("the optional APIs are not there, and their definitions cannot be had")


@dataclass(slots=True)
class Stage:
    """One service and its tenant, which are changed in turn."""

    objects: Objects
    known: dict[str, dict[Place, Any]] = field(default_factory=dict)

    def before(self, documents: tuple[Document, Document]) -> dict[Place, Any]:
        """All values before a change, which many fields have in common."""
        key = json.dumps(documents)
        if key not in self.known:
            self.become(documents)
            self.known[key] = self.objects.at_rest("llama")
        return self.known[key]

    def assert_changes(self, one: Together) -> None:
        """The fields change what the table says of each, and nothing else."""
        names = [case.field for case in one.cases]
        before = self.before(one.before)
        if not set(SIZES).isdisjoint(names):
            self.objects.without_volumes(one.before[0])
        self.become(one.after)
        want = one.effects(IN_OBJECTS)
        try:
            assert settled(lambda: self.changes(before), want) == want
        finally:
            if any(name.startswith(REMAKES_ENGINES) for name in names):
                self.known.clear()

    def become(self, documents: tuple[Document, Document]) -> None:
        service, tenant = documents
        self.objects.become(tenant)
        self.objects.become(service)

    def changes(self, before: Mapping[Place, Any]) -> list[str]:
        return summary(before, self.objects.seen("llama"))


@pytest.fixture(scope="module")
def stage(optional: None, team: Namespace, api: httpx.Client) -> Stage:
    prepare(team)
    return Stage(Objects(api, team.name))


@pytest.mark.core
def test_every_field_of_the_schema_has_a_case() -> None:
    for kind in WANT:
        assert [case.field for case in CASES if case.kind == kind] == fields_of(kind)


SIZES: Final = ("model.cache.size", "router.state.file.size")
"""Only a volume that is bound, of a class that allows it, can grow."""
NEEDS_A_POOL: Final = "engine.external.inferencePool"
"""An API that no other test needs: `test_external.py`."""
REMAKES_ENGINES: Final = ("engine.runtime", "engine.external.")
"""The Deployment of the engines goes and comes: the API server's defaults in a new one depend on its first image."""
FILLED_BY_A_JOB: Final = ("model.objectStore", "model.cache.claimName", "model.cache.fill")
"""What these change waits for a Job: `test_model_cache.py`."""
BY_OBJECTS: Final = [
    case
    for case in CASES
    if not is_decided(case)
    and case.field != NEEDS_A_POOL
    and not case.field.startswith(FILLED_BY_A_JOB)
]


SETS: Final = [
    Together(kept)
    for one in together(CASES, IN_OBJECTS)
    if (kept := tuple(case for case in one.cases if case in BY_OBJECTS))
]


@pytest.mark.core
@pytest.mark.parametrize("fields", SETS, ids=str)
def test_other_values_change_what_the_table_says_and_nothing_else(
    stage: Stage, fields: Together
) -> None:
    stage.assert_changes(fields)


@pytest.mark.parametrize(
    "case", BY_OBJECTS, ids=[f"{case.kind}:{case.field}" for case in BY_OBJECTS]
)
def test_another_value_of_one_field_changes_nothing_else(stage: Stage, case: Case) -> None:
    stage.assert_changes(Together((case,)))


CLASS: Final = "evenkeel-e2e"


@pytest.fixture
def growing(kubectl: Kubectl) -> Iterator[None]:
    """A class of volumes that may grow, and one volume of it."""
    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": CLASS},
        "provisioner": "e2e.evenkeel.dev/none",
        "allowVolumeExpansion": True,
    }
    spec = {
        "storageClassName": CLASS,
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "hostPath": {"path": "/none"},
    }
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": CLASS}}
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([storage_class, {**volume, "spec": spec}]))
    yield
    kubectl("delete", f"storageclass/{CLASS}", f"pv/{CLASS}", "--wait=false")


@pytest.mark.core
def test_a_volume_that_can_grow_does(stage: Stage, team: Namespace, growing: None) -> None:
    cache = {"storageClassName": CLASS, "size": "1Gi", "accessModes": ["ReadWriteMany"]}
    base = {"metadata.name": "grows", "spec": {"model": {"source": "hf://a/b", "cache": cache}}}
    stage.objects.become(changed(SERVICE, base))
    team("wait", "--for=create", "pvc/grows-engine", "--timeout=60s")
    team("wait", "--for=jsonpath={.status.phase}=Bound", "pvc/grows-engine", "--timeout=60s")
    stage.objects.become(changed(SERVICE, {**base, "spec.model.cache.size": "2Gi"}))
    request = "{.spec.resources.requests.storage}"
    team("wait", f"--for=jsonpath={request}=2Gi", "pvc/grows-engine", "--timeout=60s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A service that is scaled by figures that stay as they are, until a field of `spec.autoscaling` is changed."""

    then: object
    """The field's other value."""
    start: Changes = field(default_factory=dict)
    """What it is created with, besides `AUTOSCALING`."""
    given: Changes = field(default_factory=dict)
    """Demand for the next step, so that it may shrink."""
    asks: float = 40.0
    """Weighted tokens per second of a client: four replicas' worth."""
    want: tuple[int, int] = (4, 8)
    """Replicas before and after."""


_LONG_S: Final = 1800
_RULES: Final = {"stabilizationWindowSeconds": 0, "selectPolicy": "Max"}
AUTOSCALING: Final = {
    "minReplicas": 1,
    "maxReplicas": 16,
    "maxReplicasPerClient": "100%",
    "prometheus": {"tokenSecretRef": {"name": "prometheus", "key": "token"}},
    "targets": {"utilizationPercent": 100, "servicePerReplica": "10"},
    "behavior": {
        "scaleUp": {
            **_RULES,
            "policies": [{"type": "Percent", "value": 900, "periodSeconds": _LONG_S}],
        },
        "scaleDown": {
            **_RULES,
            "policies": [{"type": "Percent", "value": 100, "periodSeconds": _LONG_S}],
        },
    },
}


def grows(start: Changes, then: object, *want: int) -> Turn:
    """From one replica to four, unless its rules are in the way."""
    before, after = want
    return Turn(then=then, start=_within("scaleUp", start), want=(before, after))


def shrinks(given: Changes, then: object, *want: int) -> Turn:
    """From eight replicas to two, unless its rules are in the way."""
    before, after = want
    rules = _within("scaleDown", given)
    start, given = {"minReplicas": 8, **rules}, {"minReplicas": 1, **rules}
    return Turn(then=then, start=start, given=given, asks=20.0, want=(before, after))


def _within(way: str, rules: Changes) -> dict[str, object]:
    return {f"behavior.{way}.{name}": value for name, value in rules.items()}


TURNS: Final[Mapping[str, Turn]] = {
    "minReplicas": Turn(then=6, asks=10.0, want=(1, 6)),
    "maxReplicas": Turn(then=3, want=(4, 3)),
    "maxReplicasPerClient": Turn(then="25%", asks=80.0, want=(8, 4)),
    # Queries with another address or token get twice the demand.
    "prometheus.url": Turn(then="/other"),
    "prometheus.tokenSecretRef.name": Turn(then="other"),
    "prometheus.tokenSecretRef.key": Turn(then="other"),
    "targets.utilizationPercent": Turn(then=50),
    "targets.servicePerReplica": Turn(then="5"),
    "behavior.scaleUp.stabilizationWindowSeconds": grows(
        {"stabilizationWindowSeconds": 3600}, 0, 1, 4
    ),
    "behavior.scaleUp.selectPolicy": grows({"selectPolicy": "Disabled"}, "Max", 1, 4),
    "behavior.scaleUp.policies[].type": grows({"policies.0.value": 2}, "Pods", 2, 3),
    "behavior.scaleUp.policies[].value": grows({"policies.0.value": 100}, 200, 2, 3),
    "behavior.scaleUp.policies[].periodSeconds": grows({"policies.0.value": 100}, 1, 2, 4),
    "behavior.scaleDown.stabilizationWindowSeconds": shrinks(
        {"stabilizationWindowSeconds": 3600}, 0, 8, 2
    ),
    "behavior.scaleDown.selectPolicy": shrinks({"selectPolicy": "Disabled"}, "Max", 8, 2),
    "behavior.scaleDown.policies[].type": shrinks({"policies.0.value": 2}, "Pods", 7, 6),
    "behavior.scaleDown.policies[].value": shrinks({"policies.0.value": 50}, 75, 4, 2),
    "behavior.scaleDown.policies[].periodSeconds": shrinks({"policies.0.value": 50}, 1, 4, 2),
}
"""Field of `spec.autoscaling` → what makes it matter."""
BY_LATENCY: Final = ("targets.queueTime", "targets.ttftP95")
"""They count by the replicas that are ready: `test_fields_at_work.py`."""
BY_TARGET: Final = tuple(
    f"engine.external.scaleTargetRef.{name}" for name in ("apiVersion", "kind", "name")
)
"""What they name is scaled in place of a Deployment of the service: `test_external.py`."""
NAMES: Final = {name: f"turn-{number}" for number, name in enumerate(TURNS)}


@pytest.mark.core
def test_every_field_of_the_scaler_has_a_turn() -> None:
    decided = {case.field.removeprefix("autoscaling.") for case in CASES if is_decided(case)}
    assert {*TURNS, *BY_LATENCY, *BY_TARGET} == decided


def says(question: Question) -> Sequence[Sample]:
    """What each service's client asks for; twice as much where the question comes from elsewhere, or with another token."""
    called = re.search(r'evenkeel_dev_service="([^"]+)"', question.query)
    assert called is not None
    turn = next(turn for name, turn in TURNS.items() if NAMES[name] == called[1])
    usual = (question.prefix, question.token) == ("", "redis://prometheus/token")
    found = answers({("ads", "chat"): turn.asks if usual else 2 * turn.asks})
    return samples_of(question, namespace=TURNS_PLACE, service=called[1], answers=found)


TURNS_PLACE: Final = "fields-scaled"


@pytest.fixture(scope="module")
def scaled(optional: None, kubectl: Kubectl, api: httpx.Client) -> Iterator[Objects]:
    with namespace_of(kubectl, TURNS_PLACE) as team:
        prepare(team)
        objects = Objects(api, team.name)
        objects.become(TENANT)
        yield objects


@pytest.mark.core
def test_every_field_of_the_scaler_changes_the_number_of_replicas(scaled: Objects) -> None:
    with figures(says) as url:
        documents = {name: made(name, turn, url) for name, turn in TURNS.items()}
        for document in documents.values():
            scaled.become(document)
        wait_until(lambda: all(sees(scaled, name) for name in NAMES.values()), "first figures")
        for name, turn in TURNS.items():
            if turn.given:
                documents[name] = changed(documents[name], _paths(turn.given))
                scaled.become(documents[name])
        want = {name: turn.want[0] for name, turn in TURNS.items()}
        assert settled(lambda: replicas(scaled), want) == want
        before = {name: scaled.seen(NAMES[name]) for name in TURNS}
        for name, turn in TURNS.items():
            then = f"{url}{turn.then}" if name == "prometheus.url" else turn.then
            scaled.become(changed(documents[name], _paths({name: then})))
        want = {name: turn.want[1] for name, turn in TURNS.items()}
        assert settled(lambda: replicas(scaled), want) == want
        for case in filter(is_decided, CASES):
            name = case.field.removeprefix("autoscaling.")
            if name in TURNS and in_objects(case):
                lines = {line.replace("llama", NAMES[name]) for line in in_objects(case)}
                changes = partial(_changes, scaled, NAMES[name], before[name])
                assert settled(lambda: lines - changes(), set()) == set(), name  # noqa: B023


def _changes(objects: Objects, name: str, before: Mapping[Place, Any]) -> set[str]:
    return set(summary(before, objects.seen(name)))


def made(name: str, turn: Turn, url: str) -> Document:
    """A service of nothing but autoscaling."""
    spec = {"model": {"source": "hf://a/b"}, "autoscaling": AUTOSCALING}
    base = {"metadata.name": NAMES[name], "spec": spec, "spec.autoscaling.prometheus.url": url}
    return changed(SCALED, {**base, **_paths(turn.start)})


def _paths(changes: Changes) -> dict[str, object]:
    return {f"spec.autoscaling.{name}".replace("[]", ".0"): to for name, to in changes.items()}


def sees(objects: Objects, name: str) -> bool:
    """Whether the scaler has figures."""
    conditions = objects.service(name).get("status", {}).get("conditions", ())
    return any((one["type"], one["status"]) == ("ScalingActive", "True") for one in conditions)


def replicas(objects: Objects) -> dict[str, int]:
    """Of each service's engines, by the field that has its turn there."""
    found = {}
    for name, called in NAMES.items():
        seen = objects.seen(called)
        found[name] = seen["Deployment/" + called + "-engine", "spec", "replicas"]
    return found
