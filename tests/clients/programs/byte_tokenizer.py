"""Writes a tokenizer with one token for each byte, whose id is the byte: a simulated replica reads such ids.

Runs in the environment of the programs. Argument: the folder.
"""

from __future__ import annotations

import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

# The signs that byte-level tokenizers write for bytes: printable ones as they are, the others from 256 on.
printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
others = [byte for byte in range(256) if byte not in printable]
vocabulary = {chr(byte): byte for byte in printable}
vocabulary |= {chr(256 + index): byte for index, byte in enumerate(others)}

made = Tokenizer(models.BPE(vocabulary, []))
made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
made.decoder = decoders.ByteLevel()
end = chr(256 + others.index(2))  # the simulator's end of an answer
PreTrainedTokenizerFast(tokenizer_object=made, eos_token=end).save_pretrained(sys.argv[1])
