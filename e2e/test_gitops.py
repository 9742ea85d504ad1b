"""What Flux and Argo CD see of a service in its states: kstatus by Flux's library, health by Argo CD's own Lua engine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from evenkeel_contract.crd.definition import UNSEEN
from evenkeel_contract.names import USE_LABEL

from e2e.installed import ROOT, Namespace, service
from e2e.operators import wait_until
from e2e.rig.components import HEALTH
from e2e.rig.errors import NotHereError
from images.cache import CACHE
from images.programs import build_program, fetch_modules

pytestmark = pytest.mark.timeout(900)
SCRIPT: Final = ROOT / "crds/gitops/argocd-health.lua"
BUSY: Final = ("InProgress", "Progressing")
WELL: Final = ("Current", "Healthy")
BAD: Final = ("Failed", "Degraded")
Verdict = tuple[str, str]
"""Status by kstatus, health by Argo CD."""


@dataclass(slots=True)
class Judge:
    """The program that judges objects, and what it said last."""

    process: subprocess.Popen[str]
    message: str = ""

    def __call__(self, item: Any) -> Verdict:
        """The verdicts about an object."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(item) + "\n")
        self.process.stdin.flush()
        found = json.loads(self.process.stdout.readline())
        self.message = found["message"]
        return found["kstatus"], found["status"]


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    try:
        fetch_modules([HEALTH], CACHE / "bin")
    except NotHereError as error:
        pytest.skip(str(error))
    with judging(build_program(HEALTH)) as found:
        yield found


@contextmanager
def judging(program: Path) -> Iterator[Judge]:
    command = [program, SCRIPT]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Judge(process)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def seen(team: Namespace, judge: Judge) -> Callable[..., list[Verdict]]:
    """All verdicts about an object, service `one` by default, until a given one, each once, in their order."""

    def until(want: Verdict, kind: str = "fis", name: str = "one") -> list[Verdict]:
        found: list[Verdict] = []

        def is_so() -> bool:
            verdict = judge(team.get(kind, name))
            if verdict not in found:
                found.append(verdict)
            return verdict == want

        wait_until(is_so, f"{want} after {found}", timeout_s=240, every_s=0.05)
        return found

    return until


def test_a_new_service_is_in_progress_until_it_answers(
    team: Namespace, seen: Callable[[Verdict], list[Verdict]]
) -> None:
    team.apply(service("one", host=team.host("one"), replicas=2))
    assert seen(WELL) == [BUSY, WELL]


def test_a_crashing_rollout_fails_beside_replicas_that_answer(
    team: Namespace, judge: Judge, seen: Callable[[Verdict], list[Verdict]]
) -> None:
    team.patch("one", engine={"args": ["--profile=/nowhere.json"]})
    assert seen(BAD) == [BUSY, BAD]
    assert "'/nowhere.json' is neither" in judge.message
    assert team.condition("one", "Ready")["status"] == "True"
    team.patch("one", engine={"args": ["--profile=a100-llama3.1-8b"]})
    assert seen(WELL)[-1] == WELL


def test_a_rollout_that_works_is_in_progress_until_its_end(
    team: Namespace, seen: Callable[[Verdict], list[Verdict]]
) -> None:
    team.patch("one", engine={"template": {"metadata": {"annotations": {"a": "b"}}}})
    assert seen(WELL) == [BUSY, WELL]
    pods = team.pods("one", "engine").values()
    assert {pod["metadata"]["annotations"].get("a") for pod in pods} == {"b"}


def test_an_invalid_spec_fails_while_the_old_one_serves(
    team: Namespace, judge: Judge, seen: Callable[[Verdict], list[Verdict]]
) -> None:
    annotations = {"nginx.ingress.kubernetes.io/server-snippet": "return 200;"}
    team.patch("one", exposure={"ingress": {"annotations": annotations}})
    assert seen(BAD)[-1] == BAD
    assert "spec.exposure.ingress.annotations" in judge.message
    team.patch("one", exposure={"ingress": {"annotations": None}})
    assert seen(WELL)[-1] == WELL


def test_a_service_at_zero_by_hand_is_suspended(
    team: Namespace, seen: Callable[[Verdict], list[Verdict]]
) -> None:
    team("scale", "fis/one", "--replicas=0")
    assert seen(("InProgress", "Suspended"))[-1] == ("InProgress", "Suspended")
    team("scale", "fis/one", "--replicas=1")
    assert seen(WELL)[-1] == WELL


def test_a_gateway_waits_for_its_service_and_fails_where_another_one_has_it(
    team: Namespace, judge: Judge, seen: Callable[..., list[Verdict]]
) -> None:
    team.apply(gateway("early", "one"), gateway("late", "two"))
    assert seen(WELL, "fig", "early") == [BUSY, WELL]
    assert seen(BUSY, "fig", "late") == [BUSY]
    team.apply(service("two", host=team.host("two"), replicas=1, model={"source": "hf://a/b"}))
    assert seen(WELL, "fig", "late") == [BUSY, WELL]
    team.apply(gateway("late", "one"))
    assert seen(BAD, "fig", "late")[-1] == BAD
    assert judge.message == "Gateway early serves service one already."
    team("delete", "fig", "early", "late")


def gateway(name: str, *services: str) -> dict[str, Any]:
    models = [{"serviceRef": {"name": one}} for one in services]
    return {
        "apiVersion": "evenkeel.dev/v1alpha1",
        "kind": "FairInferenceGateway",
        "metadata": {"name": name},
        "spec": {"models": models},
    }


def test_a_tenant_waits_for_its_secret_and_fails_without_the_label(
    team: Namespace, judge: Judge, seen: Callable[..., list[Verdict]]
) -> None:
    team.tenant("ads", "sk-gitops")
    assert seen(WELL, "itn", "ads")[-1] == WELL
    team("label", "secret", "ads-keys", f"{USE_LABEL}-")
    team("patch", "secret", "ads-keys", "-p", json.dumps({"stringData": {"chat": "sk-other"}}))
    assert seen(BAD, "itn", "ads")[-1] == BAD
    assert f"kubectl label secret ads-keys {USE_LABEL}=true" in judge.message
    team("delete", "secret", "ads-keys")
    assert seen(BUSY, "itn", "ads")[-1] == BUSY


def test_an_object_that_no_operator_has_seen_is_in_progress(judge: Judge) -> None:
    """kstatus takes an object without a status for done; so the definitions have a default."""
    new = service("new", host="new.test")
    new["metadata"] |= {"namespace": "default", "generation": 1}
    assert judge(new)[0] == "Current"
    assert judge({**new, "status": UNSEEN}) == BUSY
