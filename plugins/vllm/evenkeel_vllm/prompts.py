"""What this engine tokenizes prompts with, for routers in tokens mode (contract `promptfacts`)."""

from __future__ import annotations

from typing import Any, Final

from evenkeel_contract.kvevents import PageHash
from evenkeel_contract.promptfacts import PromptFacts, facts_of
from evenkeel_plugin.tokenizer import tokenizer_files

HASH: Final = "sha256_cbor"
"""`--prefix-caching-hash-algo`: the function that routers compute too."""


def prompt_facts(config: Any) -> PromptFacts:
    """The facts of an engine with this configuration (`vllm.config.VllmConfig`). Never raises."""
    files: dict[str, bytes] = {}
    page_tokens = 1
    try:
        page_tokens = int(config.cache_config.block_size)
        model = config.model_config
        trouble = _trouble(config)
        files = tokenizer_files(model.tokenizer, model.tokenizer_revision)
        if not files:
            trouble = trouble or f"{model.tokenizer} has no tokenizer's files here"
    except (AttributeError, ImportError, OSError, TypeError, ValueError) as error:
        trouble = f"the tokenizer of this engine is unknown: {error}"
    return facts_of(
        {} if trouble else files,
        page_tokens=page_tokens,
        trouble=trouble,
        page_hash=PageHash.VLLM,
    )


def _trouble(config: Any) -> str:
    if config.model_config.skip_tokenizer_init:
        return "the engine has no tokenizer (--skip-tokenizer-init)"
    if config.cache_config.prefix_caching_hash_algo != HASH:
        return f"pages are not named by {HASH} (--prefix-caching-hash-algo)"
    return ""
