"""Decoders never raise, and what they return is either whole or explained."""

from __future__ import annotations

import json
from typing import Any

from evenkeel_contract.decode import Shape, decode, fields_of, salvage, shape_of, to_plain
from evenkeel_contract.routerconfig import RouterConfig
from evenkeel_contract.routerdocument import dump_router_config, parse_router_config
from evenkeel_contract.spec.resources import FairInferenceService, InferenceTenant
from evenkeel_contract.validate import parse_service, parse_tenant
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary()
)
keys = st.text(max_size=8) | st.integers() | st.none() | st.booleans()
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4)
)


def almost(hint: Any) -> st.SearchStrategy[Any]:
    """Data that mostly fits the hint, so that the deep parts of a decoder are reached."""
    shape, inner = shape_of(hint)
    match shape:
        case Shape.CONSTRAINED:
            fitting = almost(inner[0])
        case Shape.OPTIONAL:
            fitting = st.none() | almost(inner)
        case Shape.LIST:
            fitting = anything | st.lists(almost(inner), max_size=3)
        case Shape.OBJECT:
            known = {wire: almost(field.hint) for wire, field in fields_of(inner).items()}
            fitting = st.fixed_dictionaries({}, optional={**known, "extra": anything})
        case Shape.ENUM:
            fitting = anything | st.sampled_from([member.value for member in inner])
        case Shape.PRIMITIVE:
            fitting = anything | st.from_type(inner)
        case _:
            fitting = anything
    return fitting


@examples(100)
@given(anything | almost(RouterConfig))
def test_no_data_makes_a_decoder_raise(data: object) -> None:
    value, faults = decode(RouterConfig, data)
    assert (value is None) == bool(faults)
    assert isinstance(salvage(RouterConfig, data)[0], RouterConfig)
    if value is not None:
        assert decode(RouterConfig, to_plain(value)) == (value, ())


@examples(100)
@given(
    st.binary()
    | almost(RouterConfig).map(lambda d: json.dumps(d, default=repr, skipkeys=True).encode())
)
def test_no_bytes_make_the_parser_raise(data: bytes) -> None:
    config, faults = parse_router_config(data)
    assert (config is None) == bool(faults)
    if config is not None:
        assert parse_router_config(dump_router_config(config)) == (config, ())
    assert all(str(fault).isprintable() for fault in faults), faults


@examples(100)
@given(anything | almost(FairInferenceService))
def test_no_data_makes_the_reading_of_a_service_raise(data: object) -> None:
    service, faults = parse_service(data)
    assert (service is None) == bool(faults)
    if service is not None:
        assert parse_service(to_plain(service)) == (service, ())


@examples(100)
@given(anything | almost(InferenceTenant))
def test_no_data_makes_the_reading_of_a_tenant_raise(data: object) -> None:
    tenant, faults = parse_tenant(data)
    assert (tenant is None) == bool(faults)
    if tenant is not None:
        assert parse_tenant(to_plain(tenant)) == (tenant, ())
