"""The model with an adapter merged into its weights, computed by transformers: what an engine's adapter has to produce.

    python merged.py MODEL INPUT_IDS OUTPUT_TOKENS ADAPTER ...     (with the Python of `make sglang`)

Prints the ids of the greedy outputs as JSON: of the model alone, then of each adapter.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM


def main(model: str, input_ids: str, output_tokens: str, *adapters: str) -> None:
    outputs = [
        output(model, adapter, json.loads(input_ids), int(output_tokens))
        for adapter in (None, *adapters)
    ]
    print(json.dumps(outputs))  # noqa: T201


def output(model: str, adapter: str | None, input_ids: list[int], tokens: int) -> list[int]:
    made = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    if adapter is not None:
        config = json.loads((Path(adapter) / "adapter_config.json").read_text())
        weights = load_file(Path(adapter) / "adapter_model.safetensors")
        scale = config["lora_alpha"] / config["r"]
        for name in [name for name in weights if name.endswith("lora_A.weight")]:
            product = weights[name.replace("lora_A", "lora_B")] @ weights[name]
            path = name.removeprefix("base_model.model.").replace(".lora_A.weight", ".weight")
            made.get_parameter(path).data += scale * product
    ids = torch.tensor([input_ids])
    with torch.no_grad():
        for _ in range(tokens):
            following = made(ids).logits[0, -1].argmax()
            ids = torch.cat([ids, following.view(1, 1)], dim=1)
    found: list[int] = ids[0, -tokens:].tolist()
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
