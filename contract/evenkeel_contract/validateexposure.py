"""The rules of `spec.exposure` across its fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from evenkeel_contract.spec.gateway import FairInferenceGateway
from evenkeel_contract.spec.resources import FairInferenceService
from evenkeel_contract.values import Fault, show

_Owner: TypeAlias = FairInferenceService | FairInferenceGateway

OWNED_PREFIXES: Final = ("evenkeel.dev/", "app.kubernetes.io/")
"""Beginnings of labels and annotations of generated objects."""


def exposed_twice(service: _Owner) -> Iterator[Fault]:
    exposure = service.spec.exposure
    if exposure.ingress is not None and exposure.http_route is not None:
        yield Fault(
            "spec.exposure.httpRoute",
            "is set together with spec.exposure.ingress; remove one of the two",
            about=("spec.exposure.ingress",),
        )


def exposure_takes_what_is_ours(service: _Owner) -> Iterator[Fault]:
    exposure = service.spec.exposure
    for name, part in (("ingress", exposure.ingress), ("httpRoute", exposure.http_route)):
        if part is None:
            continue
        for field, given in (("annotations", part.annotations), ("labels", part.labels)):
            for key in given:
                if key.startswith(OWNED_PREFIXES):
                    path = f"spec.exposure.{name}.{field}[{show(key)}]"
                    yield Fault(path, "is set by Evenkeel; choose another name")


# What controllers insert into their own configuration as it is: of ingress-nginx, NGINX, HAProxy (haproxy.org), HAProxy Ingress.
_CODE: Final = re.compile(r".*-snippets?|(haproxy-)?ingress\.(github\.io|kubernetes\.io)/config-.*")


def exposure_annotations_are_code(service: _Owner) -> Iterator[Fault]:
    exposure = service.spec.exposure
    for name, part in (("ingress", exposure.ingress), ("httpRoute", exposure.http_route)):
        for key in {} if part is None else part.annotations:
            if _CODE.fullmatch(key):
                yield Fault(
                    f"spec.exposure.{name}.annotations[{show(key)}]",
                    "is text that the controller adds to its own configuration, which all hosts share; set it in the controller",
                )


EXPOSURE_RULES: Final[Sequence[Callable[[_Owner], Iterable[Fault]]]] = (
    exposed_twice,
    exposure_takes_what_is_ours,
    exposure_annotations_are_code,
)
