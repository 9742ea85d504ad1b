"""The model that a body names, read before the body itself: it decides which service reads the rest."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from evenkeel_contract.messages import UNREADABLE
from msgspec import Raw

from evenkeel_router.api.audio import model_of_form, with_model_in_form
from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.api.errors import Refusal
from evenkeel_router.api.reading import members_of


class NotNamed(Exception):
    """The body cannot be read; its parser says why."""


class _Named(msgspec.Struct, frozen=True, gc=False):
    model: str | None = None


_decoder = msgspec.json.Decoder(_Named)


class Named(msgspec.Struct, frozen=True, gc=False):
    """A body and the model that it names."""

    model: str | None
    """The name as the client sent it; None: the body has none."""
    body: bytes
    """The body with the name that replicas know."""


def read_named(
    endpoint: Endpoint, body: bytes, content_type: str, renames: Mapping[str, str]
) -> Named:
    """The model of a body. `renames`: names that replicas do not get as they are. Raises `NotNamed`."""
    try:
        if endpoint.api.form:
            model = model_of_form(body, content_type)
        else:
            model = _decoder.decode(body).model
        if model is None or model not in renames:
            return Named(model, body)
        if endpoint.api.form:
            return Named(model, with_model_in_form(body, content_type, renames[model]))
        members = members_of(body)
        members["model"] = Raw(msgspec.json.encode(renames[model]))
        return Named(model, msgspec.json.encode(members))
    except (Refusal, *UNREADABLE) as error:
        raise NotNamed from error
