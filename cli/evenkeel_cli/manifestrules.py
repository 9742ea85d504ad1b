"""The rules for one resource of a manifest that only one machine has."""

from __future__ import annotations

from collections.abc import Iterator

from evenkeel_contract.spec.gateway import FairInferenceGateway
from evenkeel_contract.spec.parts import Runtime
from evenkeel_contract.spec.resources import FairInferenceService, InferenceTenant
from evenkeel_contract.values import Fault
from evenkeel_simulator.server.settings import argument_faults


def runtime_faults(service: FairInferenceService) -> Iterator[Fault]:
    if service.spec.engine.pods_of_others is not None:
        message = "External selects pods of a cluster; for engines at other addresses use `evenkeel route`"
        yield Fault("spec.engine.runtime", message)


def repeated_name(
    resource: FairInferenceService | InferenceTenant | FairInferenceGateway,
    seen: set[tuple[str, str]],
) -> Iterator[Fault]:
    identity = (resource.metadata.namespace, resource.metadata.name)
    if identity in seen:
        message = f"{identity[1]!r} is given twice"
        yield Fault("metadata.name", message, about=("metadata.namespace",))
    seen.add(identity)


def arguments_that_simulators_refuse(service: FairInferenceService) -> Iterator[Fault]:
    if service.spec.engine.runtime is not Runtime.SIMULATOR:
        return  # real engines report invalid arguments when it starts
    for index, message in argument_faults(service.spec.engine.args):
        path = "spec.engine.args" if index is None else f"spec.engine.args[{index}]"
        yield Fault(path, message)
