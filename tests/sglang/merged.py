"""The model with an adapter merged into its weights, computed by transformers: what an engine's adapter has to produce.

    python merged.py MODEL ADAPTER INPUT_IDS OUTPUT_TOKENS      (with the Python of `make sglang`)

Prints the ids of the greedy output as JSON. ADAPTER `-`: the model alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM


def main(model: str, adapter: str, input_ids: str, output_tokens: str) -> None:
    made = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    if adapter != "-":
        config = json.loads((Path(adapter) / "adapter_config.json").read_text())
        weights = load_file(Path(adapter) / "adapter_model.safetensors")
        scale = config["lora_alpha"] / config["r"]
        for name in [name for name in weights if name.endswith("lora_A.weight")]:
            product = weights[name.replace("lora_A", "lora_B")] @ weights[name]
            path = name.removeprefix("base_model.model.").replace(".lora_A.weight", ".weight")
            made.get_parameter(path).data += scale * product
    ids = torch.tensor([json.loads(input_ids)])
    with torch.no_grad():
        for _ in range(int(output_tokens)):
            following = made(ids).logits[0, -1].argmax()
            ids = torch.cat([ids, following.view(1, 1)], dim=1)
    print(json.dumps(ids[0, -int(output_tokens) :].tolist()))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
