"""Prompts become chained block hashes."""

import pytest
from evenkeel_fairshare.prefix.index import (
    namespace_seed,
    sglang_blocks,
    text_blocks,
    token_blocks,
    unsigned,
    vllm_blocks,
)
from xxhash import xxh3_64_intdigest


def test_each_hash_stands_for_the_whole_prefix() -> None:
    first = xxh3_64_intdigest(b"abcd")
    assert text_blocks(b"abcdefgh", block_bytes=4) == [first, xxh3_64_intdigest(b"efgh", first)]


def test_a_tail_shorter_than_a_block_does_not_count() -> None:
    assert text_blocks(b"abcdefg", block_bytes=4) == text_blocks(b"abcd", block_bytes=4)
    assert text_blocks(b"abc", block_bytes=4) == []
    assert text_blocks("", block_bytes=4) == []


def test_text_is_cut_by_its_utf8_bytes() -> None:
    assert text_blocks("äö", block_bytes=2) == text_blocks("äö".encode(), block_bytes=2)


def test_a_lone_surrogate_is_hashed_like_any_other_text() -> None:
    assert len(text_blocks("\ud800abc", block_bytes=2)) == 3


def test_a_block_may_be_one_byte() -> None:
    assert len(text_blocks("abc", block_bytes=1)) == 3


def test_blocks_are_256_bytes_by_default() -> None:
    assert len(text_blocks(b"x" * 1023)) == 3


def test_an_early_difference_changes_every_later_hash() -> None:
    one, other = text_blocks("abcdefgh", block_bytes=2), text_blocks("abXdefgh", block_bytes=2)
    assert one[0] == other[0]
    assert not set(one[1:]) & set(other[1:])


@pytest.mark.parametrize("seed", [1, 2**64 - 1])
def test_seeds_part_equal_texts(seed: int) -> None:
    assert not set(text_blocks("abcd", block_bytes=2)) & set(
        text_blocks("abcd", block_bytes=2, seed=seed)
    )
    assert not set(token_blocks([1, 2], block_tokens=1)) & set(
        token_blocks([1, 2], block_tokens=1, seed=seed)
    )


def test_tokens_are_hashed_as_32_bit_words() -> None:
    words = b"".join(token.to_bytes(4, "little") for token in (7, 128_000, 3))
    assert token_blocks([7, 128_000, 3, 9, 9], block_tokens=3) == [xxh3_64_intdigest(words)]


def test_token_ids_may_use_all_32_bits() -> None:
    assert len(token_blocks([2**32 - 1], block_tokens=1)) == 1


def test_a_block_of_no_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="block_bytes is 0; it must be at least 1"):
        text_blocks("abc", block_bytes=0)


def test_pages_of_tokens_have_the_hashes_that_sglang_gives_them() -> None:
    tokens = [*range(7, 47), 128_000, 4_294_967_295]
    signed = [-3219781909874007019, -8134125063527225539]  # SGLang 0.5.23's get_native_hash says so
    assert sglang_blocks(tokens, page_tokens=16) == unsigned(signed)


def test_a_hash_of_sglang_stands_for_its_page_and_all_before() -> None:
    one, other = (
        sglang_blocks([1, 2, 3, 4, 5, 6], page_tokens=2),
        sglang_blocks([1, 2, 9, 4, 5, 6], page_tokens=2),
    )
    assert len(one) == 3
    assert one[0] == other[0]
    assert one[1] != other[1]
    assert one[2] != other[2]
    assert sglang_blocks([1, 2, 3, 4, 5], page_tokens=2) == one[:2]
    assert sglang_blocks([1], page_tokens=2) == []


def test_a_page_of_no_tokens_and_an_id_beyond_32_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="page_tokens is 0; it must be at least 1"):
        sglang_blocks([1], page_tokens=0)
    with pytest.raises(OverflowError):
        sglang_blocks([2**32], page_tokens=1)


def test_a_salt_changes_every_page() -> None:
    plain, one, other = (
        sglang_blocks([1, 2, 3, 4], page_tokens=2, cache_salt=salt) for salt in ("", "a", "b")
    )
    assert len({*plain, *one, *other}) == 6
    assert namespace_seed("") == 0
    assert namespace_seed("a") != namespace_seed("b")


def test_blocks_of_tokens_have_the_hashes_that_vllm_gives_them() -> None:
    # vLLM 0.32's hash_block_tokens with sha256_cbor, the last 8 bytes of each.
    ids = [5, 30, 300, 70_000, 1, 2, 23, 24, 255, 256, 65_535, 65_536, 9]
    small = [2076120470338188930, 11564493197567092596, 7328824037156138523]
    assert vllm_blocks(ids, page_tokens=4) == small
    large = [398006857992046888, 4651581343136509079]
    assert vllm_blocks(range(64), page_tokens=32) == large
    assert vllm_blocks(ids, page_tokens=14) == []
    salted = [1326667334295048616, 4114652859942791873]  # with the extra key ("cache_salt", …)
    assert vllm_blocks(ids[:6] + [23, 24], page_tokens=4, cache_salt="5a17" * 8) == salted


def test_vllm_has_no_block_of_no_tokens_and_no_id_beyond_32_bits() -> None:
    with pytest.raises(ValueError, match="page_tokens is 0; it must be at least 1"):
        vllm_blocks([1], page_tokens=0)
    for token in (-1, 2**32):
        with pytest.raises(OverflowError):
            vllm_blocks([token], page_tokens=1)
