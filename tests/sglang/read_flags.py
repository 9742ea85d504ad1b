"""SGLang loads its plug-ins and reads command lines, as its own main module does, and starts nothing. Runs inside SGLang's Python.

    python read_flags.py '[["--schedule-policy=dlpm"], …]'

The last line is JSON: of each command line why it is refused, or an empty text.
"""

import json
import sys

from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import prepare_server_args


def refusal(flags: list[str]) -> str:
    try:
        load_plugins()
        prepare_server_args(flags)
    except SystemExit as why:
        return str(why)
    return ""


if __name__ == "__main__":
    print("\n" + json.dumps([refusal(flags) for flags in json.loads(sys.argv[1])]))  # noqa: T201
