"""Writes a tokenizer, trained on this repository's documentation: the programs count and make prompts with one, and no hub is needed.

Runs in the environment of a program that has `tokenizers` and `transformers`. Arguments: a folder of Markdown, the folder to write.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

texts, folder = map(Path, sys.argv[1:])
made = Tokenizer(models.BPE())
made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
made.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=4000,
    special_tokens=["<s>", "</s>"],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
)
made.train(sorted(map(str, texts.rglob("*.md"))), trainer)
PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>").save_pretrained(
    folder
)
