"""Builds a Llama with random weights and a tokenizer trained here. Nothing is fetched.

    python tiny_model.py FOLDER [SHAPE]

Shape `tiny`, the default, is small enough for a CPU: two layers, hidden size 64, 1024 tokens of byte-level BPE, about
213,000 parameters. Shape `1b` is Llama-3.2-1B's but for the vocabulary: a GPU has something to do (`bench/gpu`). Run in an
environment of SGLang. The seed is fixed: every build gives the same weights.
"""

from __future__ import annotations

import sys
from pydoc_data import topics

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 1024
SHAPES = {
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,  # vLLM on a CPU has kernels for heads of 32, not of 16
        "num_key_value_heads": 2,
        "max_position_embeddings": 8192,
    },
    "1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 65_536,
        "dtype": "bfloat16",
    },
}
TEMPLATE = (
    "{% for message in messages %}<s>{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def main(folder: str, shape: str) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(topics.topics.values(), trainer)  # Python's help: much English
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
        **SHAPES[shape],
    )
    model = LlamaForCausalLM(config)
    model.to(config.dtype or torch.float32).save_pretrained(folder)
    wrapped.save_pretrained(folder)


if __name__ == "__main__":
    folder, shape = [*sys.argv[1:], "tiny", ""][:2]
    if len(sys.argv) not in (2, 3) or shape not in SHAPES:
        sys.exit(f"usage: python tiny_model.py FOLDER [{' | '.join(SHAPES)}]")
    main(folder, shape)
