"""The client key and the reports: round trips, and nothing but the named error for anything else."""

from __future__ import annotations

from dataclasses import replace

from evenkeel_contract import reports
from evenkeel_contract.key import (
    MAX_KEY_BYTES,
    MAX_SEED,
    MAX_WEIGHT,
    ClientKey,
    ClientKeyError,
    decode,
)
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.examples import examples

names = st.text(min_size=1, max_size=40).filter(
    lambda name: all(not "\ud800" <= char <= "\udfff" for char in name)
)
weights = st.integers(1, MAX_WEIGHT)
keys = st.builds(
    ClientKey,
    namespace=names,
    tenant=names,
    client=names,
    tenant_weight=weights,
    client_weight=weights,
    seed=st.integers(-MAX_SEED, MAX_SEED),
    tenant_seed=st.integers(-MAX_SEED, MAX_SEED),
    retried_by_fleet=st.booleans(),
)
keys |= st.builds(
    replace,
    keys,
    retried_by_fleet=st.just(True),
    paid_output_tokens=st.integers(0, MAX_SEED),
)


@given(keys)
def test_a_key_that_encodes_decodes_to_itself(key: ClientKey) -> None:
    try:
        text = key.encode()
    except ClientKeyError as error:  # the only way out: names that escape to more than the limit
        assert f"longer than {MAX_KEY_BYTES}" in str(error)
        return
    assert decode(text) == key
    assert text.isascii() and text.isprintable() and " " not in text


@given(keys, keys)
def test_two_keys_share_an_identity_only_if_all_names_are_equal(a: ClientKey, b: ClientKey) -> None:
    same = (a.namespace, a.tenant, a.client) == (b.namespace, b.tenant, b.client)
    assert (a.identity == b.identity) == same


mutated = st.builds(
    lambda text, at, new: text[: at % (len(text) + 1)] + new + text[at % (len(text) + 1) + 1 :],
    st.sampled_from(["ek1;n/t/c;w=1,1", "ek1;a%2F/b/c;w=2,3;s=-5;f"]),
    st.integers(0, 60),
    st.text(max_size=3),
)


@given(st.text(max_size=80) | mutated | st.binary().map(lambda data: data.decode("latin-1")))
@example("ek1;n/t/%ED%A0%80;w=1,1")
def test_no_text_raises_anything_but_the_named_error(text: str) -> None:
    try:
        key = decode(text)
    except ClientKeyError:
        return
    assert key.encode() == text


figures = st.floats(0, 1e300)
totals = st.integers(0, 2**63 - 1)
states = st.floats(-1e300, 1e300)
clients = st.builds(
    reports.ClientReport,
    client=names,
    extend_tokens=totals,
    cached_tokens=totals,
    output_tokens=totals,
    service=figures,
    normalised=figures,
    tenant_normalised=figures,
    requests=totals,
    deficit=states,
    tenant_deficit=states,
    waiting=totals,
    running=totals,
)
answers = st.builds(
    reports.Report,
    version=st.just(reports.REPORT_VERSION),
    incarnation=names,
    sequence=totals,
    since=totals,
    policy=names,
    clients=st.lists(clients, max_size=3).map(tuple),
)


@examples(50)
@given(answers)
def test_a_report_survives_the_wire(report: reports.Report) -> None:
    assert reports.decode_report(reports.encode(report)) == report


@given(st.binary() | answers.map(reports.encode), st.integers(0, 500), st.binary(max_size=4))
def test_no_bytes_raise_anything_but_the_named_error(data: bytes, at: int, new: bytes) -> None:
    for bytes_ in (data, data[:at] + new + data[at + len(new) :]):
        for read in (reports.decode_report, reports.decode_request):
            try:
                message = read(bytes_)
            except reports.ReportError:
                continue
            assert message.version == reports.REPORT_VERSION
