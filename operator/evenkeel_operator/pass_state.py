"""The state of one pass over a FairInferenceService: a frozen value that every step reads, and returns with its own results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from evenkeel_contract.routerconfig import StateStore
from evenkeel_contract.spec.parts import ScaleTarget

from evenkeel_operator.cluster.apply import ApplyResult
from evenkeel_operator.cluster.observed import Observed
from evenkeel_operator.cluster.store import Key
from evenkeel_operator.core.fill import Fill
from evenkeel_operator.core.objects import Change, Manifest, Object, ref_of
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.records import SpecDecision
from evenkeel_operator.core.scaling import Scaling
from evenkeel_operator.desired import Desired


@dataclass(frozen=True, slots=True, kw_only=True)
class PassState:
    """One service as the steps of a pass have found it so far. Each `with_…` returns a copy."""

    seen: Observed
    spec: SpecDecision
    scaling: Scaling
    present: int | None = None
    """The number that the object of another owner asks for; None if there is none, or it may not be scaled."""
    desired: Desired | None = None
    """All objects to have; None if no valid spec is in use."""
    fill: Fill | None = None
    """How far the volume with the model's files is; None: no Job fills it."""
    model: Note | None = None
    """Reason and message of condition ModelCached; None: no Job fills a volume."""
    notes: tuple[Note, ...] = ()
    """Reasons of condition Degraded. Those of later steps come first: a refused write explains more than a missing API."""
    blocked: Note | None = None
    """Why new engines do not become ready although their containers are."""
    reverted: tuple[Change, ...] = ()
    """Foreign changes that the pass reverted."""
    inactive: tuple[str, ...] = ()
    """Distinct reasons why engines run without the policy of their plug-in, sorted."""
    due_s: tuple[float, ...] = ()
    """Seconds until the next pass without an event, for each step that needs one."""

    @property
    def key(self) -> Key:
        """The service's name and namespace."""
        return self.seen.key

    @property
    def raw(self) -> Object:
        """The FairInferenceService as the API server has it."""
        return self.seen.raw

    @property
    def is_external(self) -> bool:
        """Another owner made the engines."""
        return self.spec.external is not None

    @property
    def wakes(self) -> bool:
        """Whether the next request starts an engine when there are none."""
        spec = self.spec.spec
        return spec is not None and spec.autoscaling is not None and spec.autoscaling.wakes

    @property
    def has_store(self) -> bool:
        """Routers keep the ledger in a file or a server."""
        spec = self.spec.spec
        return spec is not None and spec.router.state.store is not StateStore.PEERS

    @property
    def scale_target(self) -> ScaleTarget | None:
        """The object that the operator scales in place of its own Deployment."""
        spec, external = self.spec.spec, self.spec.external
        scaled = external is not None and spec is not None and spec.autoscaling is not None
        return external.scale_target_ref if external is not None and scaled else None

    def with_scaling(self, scaling: Scaling, target: int | Note | None = None) -> PassState:
        """The number of engines to run, and what was found of the object that is scaled for another owner."""
        notes = (target,) if isinstance(target, Note) else ()
        present = target if isinstance(target, int) else None
        return replace(self, scaling=scaling, present=present).with_notes(notes)

    def with_fill(self, fill: Fill, model: Note | None = None) -> PassState:
        """How far the volume with the model's files is, and condition ModelCached."""
        return replace(self, fill=fill, model=model)

    def with_model(self, model: Note) -> PassState:
        """Reason and message of condition ModelCached."""
        return replace(self, model=model)

    def with_desired(self, desired: Desired) -> PassState:
        """The objects to have, and what could not be built."""
        return replace(self, desired=desired).with_notes(desired.notes)

    def with_manifest(self, manifest: Manifest) -> PassState:
        """Another manifest of an object that is desired already."""
        assert self.desired is not None
        ref = ref_of(manifest)
        items = (manifest if ref_of(item) == ref else item for item in self.desired.manifests)
        return replace(self, desired=replace(self.desired, manifests=tuple(items)))

    def with_blocked(self, blocked: Note | None) -> PassState:
        """Why a rollout does not continue."""
        return replace(self, blocked=blocked)

    def with_applied(self, result: ApplyResult) -> PassState:
        """What the API server answered to the writes."""
        applied = replace(self, reverted=tuple(result.reverted))
        return applied.with_notes(result.notes).due(result.again_s)

    def with_reported(self, *, inactive: tuple[str, ...], notes: Iterable[Note]) -> PassState:
        """What routers report of engines and of the ledger's store. These notes come last: they are about no object."""
        return replace(self, inactive=inactive, notes=(*self.notes, *notes))

    def with_notes(self, notes: Iterable[Note]) -> PassState:
        """Further reasons of condition Degraded, before the known ones."""
        return replace(self, notes=(*notes, *self.notes))

    def due(self, after_s: float | None) -> PassState:
        """A pass is due after this time even without an event; None: this step needs none."""
        return self if after_s is None else replace(self, due_s=(*self.due_s, after_s))
