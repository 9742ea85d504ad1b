"""Tiny LoRA adapters with random weights, in the format of PEFT, for a model's shapes."""

from __future__ import annotations

import json
import struct
from array import array
from pathlib import Path
from random import Random
from typing import Any, Final

RANK: Final = 4
ALPHA: Final = 8
MODULES: Final = ("q_proj", "v_proj", "o_proj")


def write_adapter(folder: Path, model: Path, *, seed: int, scale: float = 0.3) -> Path:
    """Write an adapter for the model in `model`. The same seed gives the same weights."""
    config = json.loads((model / "config.json").read_text())
    hidden = config["hidden_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, values = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes = {"q_proj": (hidden, queries), "v_proj": (hidden, values), "o_proj": (queries, hidden)}
    random = Random(seed)
    tensors: dict[str, tuple[list[int], array[float]]] = {}
    for layer in range(config["num_hidden_layers"]):
        for name, (inputs, outputs) in shapes.items():
            stem = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for part, shape in (("A", [RANK, inputs]), ("B", [outputs, RANK])):
                numbers = (random.gauss(0.0, scale) for _ in range(shape[0] * shape[1]))
                tensors[f"{stem}.lora_{part}.weight"] = shape, array("f", numbers)
    folder.mkdir(parents=True, exist_ok=True)
    _write_safetensors(folder / "adapter_model.safetensors", tensors)
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(MODULES),
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def _write_safetensors(path: Path, tensors: dict[str, tuple[list[int], array[float]]]) -> None:
    header: dict[str, Any] = {}
    end = 0
    for name, (shape, numbers) in tensors.items():
        start, end = end, end + len(numbers) * numbers.itemsize
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    data = b"".join(numbers.tobytes() for _, numbers in tensors.values())
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)
