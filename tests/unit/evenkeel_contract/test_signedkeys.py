"""Signed keys: what they say, and what is no key."""

from __future__ import annotations

import re

import pytest
from evenkeel_contract.signedkeys import (
    KEY_PATTERN,
    PREFIX,
    KeyFault,
    SignedKey,
    SignedKeyError,
    checksum,
    has_checksum,
    mint,
    read,
    salvage_signing_keys,
    verify,
)
from hypothesis import given
from hypothesis import strategies as st

SECRET, OTHER = "s" * 32, "o" * 32
SECRETS = {"2026-11": SECRET, "2026-12": OTHER}
RECORD = SignedKey(
    signer="2026-11",
    id="AbCdEfGhIjKl",
    namespace="ns",
    tenant="ads",
    client="ann",
    issued_s=1_800_000_000,
    expires_s=1_807_776_000,
)
KEY = mint(RECORD, SECRET)


def fault_of(text: str) -> KeyFault:
    with pytest.raises(SignedKeyError) as caught:
        verify(text, SECRETS)
    return caught.value.fault


def test_a_key_says_who_it_belongs_to_and_when_it_ends() -> None:
    assert verify(KEY, SECRETS) == RECORD == read(KEY)
    assert RECORD.identity == "ns/ads/ann"
    assert len(KEY) < 150


def test_a_program_that_looks_for_secrets_can_tell_a_key() -> None:
    (found,) = re.findall(KEY_PATTERN, f"export KEY='{KEY}'; echo {KEY[:40]}")
    assert found == KEY
    assert has_checksum(KEY)
    assert not has_checksum(KEY[:-1] + ("0" if KEY[-1] != "0" else "1"))


@given(st.text(max_size=60), st.text(max_size=60), st.integers(0, 2**40), st.integers(0, 2**53))
def test_every_record_comes_back(tenant: str, client: str, ends: int, limit: int) -> None:
    names = (tenant, client)
    if any("\ud800" <= letter <= "\udfff" for name in names for letter in name):
        return
    record = SignedKey("2026-12", "k", "n", tenant, client, 0, ends, limit, limit, limit)
    assert verify(mint(record, OTHER), SECRETS) == record


def forged(payload: bytes, mac: bytes) -> str:
    from base64 import urlsafe_b64encode

    text = PREFIX + urlsafe_b64encode(payload + mac).rstrip(b"=").decode()
    return text + checksum(text)


def test_a_changed_record_is_a_forgery() -> None:
    import msgspec

    changed = msgspec.structs.replace(RECORD, tenant="search")
    assert fault_of(mint(changed, "x" * 32)) is KeyFault.FORGED
    assert fault_of(forged(msgspec.msgpack.encode(RECORD), b"\0" * 16)) is KeyFault.FORGED
    assert fault_of(mint(RECORD, OTHER)) is KeyFault.FORGED


def test_a_key_of_a_signer_that_is_gone_is_refused() -> None:
    import msgspec

    gone = msgspec.structs.replace(RECORD, signer="2025-01")
    assert fault_of(mint(gone, SECRET)) is KeyFault.UNKNOWN_SIGNER


@pytest.mark.parametrize(
    "text",
    ["", "evk1_", KEY[:-1], KEY + "x", KEY.lower(), "sk-1", KEY.replace("evk1_", "evk2_")],
)
def test_what_is_no_key_is_malformed(text: str) -> None:
    assert fault_of(text) is KeyFault.MALFORMED


@pytest.mark.parametrize("payload", [b"", b"\x90", b"\xc1", b"\x97" + b"\x01" * 7, b"x" * 600])
def test_records_that_cannot_be_read_are_malformed(payload: bytes) -> None:
    assert fault_of(forged(payload, b"\0" * 16)) is KeyFault.MALFORMED


@given(st.integers(0, len(KEY) - 1), st.characters(codec="ascii"))
def test_a_key_with_one_other_character_is_refused(at: int, letter: str) -> None:
    text = KEY[:at] + letter + KEY[at + 1 :]
    if text != KEY:
        assert fault_of(text) is KeyFault.MALFORMED


def test_entries_that_are_no_signing_keys_are_named() -> None:
    good, bad = salvage_signing_keys({"a": SECRET, "b": "short", "c/d": SECRET})
    assert (set(good), len(bad)) == ({"a"}, 2)
    assert all("short" not in one for one in bad)
