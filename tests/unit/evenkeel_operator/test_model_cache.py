"""A model that a Job downloads onto a volume, pass by pass: the Job first, then engines, and the old folder last."""

from __future__ import annotations

from typing import Any

import pytest
from evenkeel_contract.downloads import Progress
from evenkeel_contract.names import MODEL_LABEL
from evenkeel_contract.spec.model import Model
from evenkeel_operator.core.fill import KEEPS_ANNOTATION, digest_of
from evenkeel_operator.core.objects import OPTIONAL_KINDS, Object

from tests.support.fake_cluster import FakeCluster
from tests.support.operator_lives import (
    KEY,
    Operator,
    become_ready,
    cluster_with_the_sample,
    condition,
)

SERVICE = "FairInferenceService"
ONE = "s3://models/one"
TWO = "s3://models/two"


def model(source: str = ONE, **fields: Any) -> dict[str, Any]:
    return {"source": source, "servedName": "llama", "cache": {"size": "1Gi"}, **fields}


def cluster(**spec: Any) -> FakeCluster:
    found = cluster_with_the_sample(**{"model": model(), **spec})
    found.optional = OPTIONAL_KINDS
    return found


def digest(source: str) -> str:
    return digest_of(Model(source=source))


def jobs(world: FakeCluster) -> list[Object]:
    return [item for (kind, _, _), item in world.objects.items() if kind == "Job"]


def engines(world: FakeCluster) -> Object | None:
    return world.objects.get(("Deployment", "team-ml", "simulated-engine"))


def label(world: FakeCluster) -> str:
    found = engines(world)
    assert found is not None
    return str(found["spec"]["template"]["metadata"]["labels"].get(MODEL_LABEL, ""))


async def end(operator: Operator, world: FakeCluster, how: str = "Complete") -> None:
    """The Job controller reports the end of the only Job, and the operator sees it."""
    (job,) = jobs(world)
    status = {"conditions": [{"type": how, "status": "True"}]}
    await operator.sees(world.put({**job, "status": status}))


async def make_ready(operator: Operator, world: FakeCluster) -> None:
    for item in become_ready(world):
        await operator.sees(item)


async def served(source: str = ONE) -> tuple[Operator, FakeCluster]:
    """A service whose engines read the files of a source."""
    world = cluster(model=model(source))
    operator = Operator(world)
    await operator.make_pass(KEY)
    await end(operator, world)
    await make_ready(operator, world)
    return operator, world


async def test_engines_start_only_when_the_volume_has_the_files() -> None:
    world = cluster()
    operator = Operator(world)
    await operator.make_pass(KEY)
    (job,) = jobs(world)
    assert engines(world) is None
    assert ("PersistentVolumeClaim", "team-ml", "simulated-engine") in world.objects
    assert condition(world, "ModelCached")["reason"] == "Downloading"
    assert condition(world, "EnginesReady")["reason"] == "ModelNotCached"
    assert job["metadata"]["labels"][MODEL_LABEL] == digest(ONE)
    await end(operator, world)
    assert label(world) == digest(ONE)
    assert condition(world, "ModelCached")["status"] == "True"


async def test_the_condition_has_the_progress_that_the_pod_reports() -> None:
    world = cluster()
    operator = Operator(world)
    operator.downloads.progress = Progress(written=6_450_000_000, total=15_000_000_000)
    again_s = await operator.make_pass(KEY)
    want = f"43 % of 15.0 GB of {ONE} are downloaded."
    assert condition(world, "ModelCached")["message"] == want
    assert again_s is not None
    assert again_s <= 10


async def test_a_download_that_fails_is_named_with_the_last_line_of_its_log() -> None:
    world = cluster()
    operator = Operator(world)
    await operator.make_pass(KEY)
    (job,) = jobs(world)
    ended = {
        "reason": "Error",
        "exitCode": 1,
        "message": "downloading\ns3://models/one has no files\n",
    }
    status = {
        "phase": "Running",
        "containerStatuses": [
            {"name": "model", "state": {"waiting": {}}, "lastState": {"terminated": ended}}
        ],
    }
    labels = job["spec"]["template"]["metadata"]["labels"]
    pod = {"kind": "Pod", "apiVersion": "v1", "status": status,
           "metadata": {"name": "simulated-model-x", "namespace": "team-ml", "labels": labels}}  # fmt: skip
    await operator.sees(world.put(pod))
    found = condition(world, "ModelCached")
    assert found["reason"] == "DownloadFails"
    assert "s3://models/one has no files" in found["message"]
    assert condition(world, "Degraded")["reason"] == "DownloadFails"


async def test_the_engines_before_serve_until_the_new_files_are_there() -> None:
    operator, world = await served()
    assert jobs(world) == []
    before = engines(world)
    await operator.edit(SERVICE, "simulated", model=model(TWO), router={"replicas": 3})
    (job,) = jobs(world)
    assert job["metadata"]["annotations"][KEEPS_ANNOTATION] == digest(ONE)
    assert f"--keep={digest(ONE)}" in job["spec"]["template"]["spec"]["containers"][0]["args"]
    after = engines(world)
    assert before is not None
    assert after is not None
    assert after["spec"] == before["spec"]
    assert world.objects["Deployment", "team-ml", "simulated-router"]["spec"]["replicas"] == 3
    assert condition(world, "ModelCached")["status"] == "False"
    assert condition(world, "Progressing")["reason"] == "ModelNotCached"
    await end(operator, world)
    assert label(world) == digest(TWO)


async def test_replicas_may_change_while_a_new_model_is_downloaded() -> None:
    operator, world = await served()
    engine = world.objects[SERVICE, "team-ml", "simulated"]["spec"]["engine"]
    await operator.edit(SERVICE, "simulated", model=model(TWO), engine={**engine, "replicas": 7})
    found = engines(world)
    assert found is not None
    assert found["spec"]["replicas"] == 7
    assert label(world) == digest(ONE)


async def test_the_old_folder_is_removed_after_the_rollout() -> None:
    operator, world = await served()
    await operator.edit(SERVICE, "simulated", model=model(TWO))
    await end(operator, world)
    (during,) = jobs(world)
    assert during["metadata"]["annotations"][KEEPS_ANNOTATION] == digest(ONE)
    await make_ready(operator, world)
    (job,) = jobs(world)
    assert job["metadata"]["name"] != during["metadata"]["name"]
    assert not any(
        "--keep" in one for one in job["spec"]["template"]["spec"]["containers"][0]["args"]
    )
    await end(operator, world)
    assert jobs(world) == []


async def test_an_old_spec_is_wanted_again_before_the_download_ended() -> None:
    operator, world = await served()
    await operator.edit(SERVICE, "simulated", model=model(TWO))
    await operator.edit(SERVICE, "simulated", model=model(ONE))
    assert jobs(world) == []
    assert label(world) == digest(ONE)
    assert condition(world, "ModelCached")["status"] == "True"


async def test_an_operator_that_starts_again_continues_where_it_was() -> None:
    operator, world = await served()
    await operator.edit(SERVICE, "simulated", model=model(TWO))
    (job,) = jobs(world)
    await Operator(world).make_pass(KEY)
    assert jobs(world) == [job]
    assert label(world) == digest(ONE)


async def test_a_job_that_somebody_deletes_stops_no_engine() -> None:
    _, world = await served()
    found = engines(world)
    await Operator(world).make_pass(KEY)
    assert engines(world) == found
    assert jobs(world) == []
    assert condition(world, "ModelCached")["status"] == "True"


async def test_a_bucket_without_consent_for_its_secret_is_refused() -> None:
    world = cluster(model=model(objectStore={"secretRef": {"name": "bucket"}}))
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bucket", "namespace": "team-ml"}}  # fmt: skip
    world.put(secret)
    await Operator(world).make_pass(KEY)
    assert jobs(world) == []
    assert "spec.model.objectStore.secretRef: " in condition(world, "SpecValid")["message"]


async def test_without_the_right_to_jobs_only_services_that_need_one_say_so() -> None:
    plain = cluster_with_the_sample()
    plain.optional = OPTIONAL_KINDS
    for world in (plain, cluster()):
        world.forbids = lambda kind, _: kind == "Job"
        await Operator(world).make_pass(KEY)
    assert condition(plain, "Degraded")["status"] == "False"
    assert "jobs.batch" in condition(world, "Degraded")["message"]


@pytest.mark.parametrize("fill", [None, "Replicas"])
async def test_a_hub_source_is_downloaded_by_replicas_unless_a_job_is_asked_for(
    fill: str | None,
) -> None:
    cache = {"size": "1Gi", **({} if fill is None else {"fill": fill})}
    world = cluster(model=model("hf://org/name", cache=cache))
    await Operator(world).make_pass(KEY)
    assert jobs(world) == []
    assert label(world) == ""


async def test_the_whole_spec_before_stays_where_the_new_one_needs_its_own_model() -> None:
    """Seven replicas are no number for a volume of one node, which the replicas before have."""
    one_node = model(cache={"size": "1Gi", "accessModes": ["ReadWriteOnce"]})
    engine = {"runtime": "Simulator", "replicas": 1}
    world = cluster(model=one_node, engine=engine)
    operator = Operator(world)
    await operator.make_pass(KEY)
    await end(operator, world)
    await make_ready(operator, world)
    await operator.edit(SERVICE, "simulated", model=model(TWO), engine={**engine, "replicas": 7})
    found = engines(world)
    assert found is not None
    assert found["spec"]["replicas"] == 1
    assert condition(world, "SpecValid")["status"] == "True"
    await end(operator, world)
    assert label(world) == digest(TWO)


async def test_engines_stay_where_nobody_knows_what_they_were_made_from() -> None:
    _, world = await served()
    del world.objects["ConfigMap", "team-ml", "simulated-accepted"]
    item = world.objects[SERVICE, "team-ml", "simulated"]
    world.put({**item, "spec": {**item["spec"], "model": model(TWO)}})
    await Operator(world).make_pass(KEY)
    assert engines(world) is not None
    assert [one["metadata"]["labels"][MODEL_LABEL] for one in jobs(world)] == [digest(TWO)]
