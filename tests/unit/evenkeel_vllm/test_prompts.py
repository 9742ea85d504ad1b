"""What an engine tells of the way it makes tokens, by its configuration."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from evenkeel_contract.kvevents import PageHash
from evenkeel_contract.promptfacts import facts_of
from evenkeel_vllm.prompts import prompt_facts

FILES = {"tokenizer.json": b"{}"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_bytes(FILES["tokenizer.json"])
    (tmp_path / "model.safetensors").write_bytes(b"large")
    return tmp_path


def config(folder: Path, **changes: Any) -> SimpleNamespace:
    """The parts of `vllm.config.VllmConfig` that are looked at."""
    model = {"tokenizer": str(folder), "tokenizer_revision": None, "skip_tokenizer_init": False}
    cache = {"block_size": 32, "prefix_caching_hash_algo": "sha256_cbor"}
    return SimpleNamespace(
        model_config=SimpleNamespace(**model | {k: v for k, v in changes.items() if k in model}),
        cache_config=SimpleNamespace(**cache | {k: v for k, v in changes.items() if k in cache}),
    )


def test_the_tokenizer_s_files_and_the_engines_pages_are_reported(folder: Path) -> None:
    assert prompt_facts(config(folder)) == facts_of(FILES, page_tokens=32, page_hash=PageHash.VLLM)


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        ({"skip_tokenizer_init": True}, "the engine has no tokenizer"),
        ({"prefix_caching_hash_algo": "xxhash"}, "pages are not named by sha256_cbor"),
        ({"block_size": None}, "the tokenizer of this engine is unknown"),
    ],
)
def test_a_reason_is_given_where_a_router_cannot_tokenize(
    folder: Path, changes: dict[str, Any], want: str
) -> None:
    told = prompt_facts(config(folder, **changes))
    assert told.trouble.startswith(want)
    assert not told.files


def test_an_empty_folder_and_another_version_s_configuration_are_reported(
    tmp_path: Path,
) -> None:
    assert "has no tokenizer's files here" in prompt_facts(config(tmp_path)).trouble
    assert "is unknown" in prompt_facts(SimpleNamespace()).trouble
