"""SGLang loads its plug-ins and reads command lines, as its own main module does, and starts nothing. Runs inside SGLang's Python.

    python read_flags.py '[["--schedule-policy=dlpm", "VARIABLE=value"], …]'

A word without dashes is a variable of the environment. The last line is JSON: of each command line why it is refused, or an empty text.
"""

import json
import os
import sys
from unittest.mock import patch

from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import prepare_server_args


def refusal(words: list[str]) -> str:
    variables = dict(word.split("=") for word in words if not word.startswith("--"))
    try:
        with patch.dict(os.environ, variables):
            load_plugins()
            prepare_server_args([word for word in words if word.startswith("--")])
    except SystemExit as why:
        return str(why)
    return ""


if __name__ == "__main__":
    print("\n" + json.dumps([refusal(flags) for flags in json.loads(sys.argv[1])]))  # noqa: T201
