"""The volume with a model's files: what a Job still has to download, which spec is in use meanwhile, and the condition. Pure.

A Job fills a folder for each source. Engines that read the folder have its digest as a label, so that nothing has to be kept
elsewhere: a folder that engines read is full. The Job stays until the rollout ended. Then another Job of the same program removes
the folder that the old engines read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from evenkeel_contract.downloads import Progress
from evenkeel_contract.names import GROUP, MODEL_LABEL
from evenkeel_contract.spec.model import Model
from evenkeel_contract.spec.resources import FairInferenceService

from evenkeel_operator.core import reasons
from evenkeel_operator.core.objects import (
    Object,
    annotations_of,
    conditions_of,
    labels_of,
)
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.workload import has_ended, of_containers, of_scheduling, workload

KEEPS_ANNOTATION: Final = f"{GROUP}/keeps"
"""Annotation of a Job: the digest of the folder that engines still read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """How far the volume is."""

    service: FairInferenceService
    """The service with the model that is downloaded; another one may be in use meanwhile."""
    is_filled: bool
    """Whether engines may read the files."""
    needs_job: bool = True
    keeps: str = ""
    """Digest of the folder that stays beside the new one; empty: none."""
    holds_spec: bool = False
    """Whether engines of the spec before serve meanwhile."""

    @property
    def model(self) -> Model:
        return self.service.spec.model

    @property
    def has_engines(self) -> bool:
        """Whether the engines' Deployment is built."""
        return self.is_filled or self.holds_spec


def digest_of(model: Model) -> str:
    """Name of the folder of a source."""
    endpoint = None if model.object_store is None else model.object_store.endpoint
    return hashlib.sha256(f"{model.source}\n{endpoint or ''}".encode()).hexdigest()[:16]


def fill_of(
    service: FairInferenceService, *, engines: Object | None, jobs: Iterable[Object]
) -> Fill:
    """The state of the volume, by the Deployment of the engines and the Jobs of the service."""
    wanted, in_use = digest_of(service.spec.model), digest_in_use(engines)
    own = [one for one in jobs if labels_of(one).get(MODEL_LABEL) == wanted and _is_alive(one)]
    if in_use != wanted:
        full = any(_has_condition(one, "Complete") for one in own)
        return Fill(service=service, is_filled=full, keeps=in_use)
    keeps = next((kept for one in own if (kept := annotations_of(one).get(KEEPS_ANNOTATION))), "")
    if keeps and not _is_settled(engines):
        return Fill(service=service, is_filled=True, keeps=keeps)
    ended = all(_has_condition(one, "Complete") or _has_condition(one, "Failed") for one in own)
    return Fill(service=service, is_filled=True, needs_job=bool(keeps) or not ended)


def digest_in_use(engines: Object | None) -> str:
    """Digest of the folder that engines read; empty: none."""
    template = {} if engines is None else engines["spec"]["template"]
    return str((template.get("metadata", {}).get("labels") or {}).get(MODEL_LABEL, ""))


def _is_alive(job: Object) -> bool:
    return "deletionTimestamp" not in job["metadata"]


def _has_condition(job: Object, name: str) -> bool:
    return conditions_of(job).get(name, {}).get("status") == "True"


def _is_settled(engines: Object | None) -> bool:
    return (
        engines is not None and workload(engines, wanted=engines["spec"].get("replicas", 1)).settled
    )


def held_spec(newest: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """The newest spec with the model and the engines of the one before. Their number follows the newest one."""
    engine = {
        name: value for name, value in (before.get("engine") or {}).items() if name != "replicas"
    }
    replicas = (newest.get("engine") or {}).get("replicas")
    if replicas is not None:
        engine["replicas"] = replicas
    return {**newest, "model": before["model"], "engine": engine}


def cached(fill: Fill, pods: Sequence[Object] = (), progress: Progress | None = None) -> Note:
    """Reason and message of condition ModelCached. The pods are those of the Job."""
    source = fill.model.source
    if fill.is_filled:
        return Note(reasons.CACHED, f"The volume has all files of {source}.")
    alive = sorted(
        (pod for pod in pods if not has_ended(pod)), key=lambda pod: str(pod["metadata"]["name"])
    )
    for pod in alive:
        for note in (*of_containers(pod), *of_scheduling(pod)):
            failed = note.reason == reasons.CRASHING
            reason = reasons.DOWNLOAD_FAILS if failed else note.reason
            return Note(
                reason, f"The download of {source} {'fails' if failed else 'waits'}: {note.message}"
            )
    if progress is None or not progress.total:
        return Note(reasons.DOWNLOADING, f"A Job begins to download {source}.")
    size = (
        f"{progress.total / 1e9:.1f} GB"
        if progress.total >= 1e8
        else f"{progress.total / 1e6:.1f} MB"
    )
    return Note(reasons.DOWNLOADING, f"{progress.percent} % of {size} of {source} are downloaded.")
