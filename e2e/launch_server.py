"""A simulated replica by the command line of SGLang (`standin.py`). Flags that it does not know are ignored; a model in a folder must be there."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from evenkeel_contract.names import KV_EVENTS_PORT, KV_REPLAY_PORT, REPORTS_PORT
from evenkeel_simulator.server.__main__ import main

parser = argparse.ArgumentParser(allow_abbrev=False)
for name in ("model-path", "served-model-name", "host", "port", "api-key", "page-size"):
    parser.add_argument(f"--{name}", required=True)
given, _ = parser.parse_known_args()
if given.model_path.startswith("/"):
    Path(given.model_path, "config.json").read_bytes()
sys.exit(
    main(
        [
            f"--model={given.served_model_name}",
            f"--host={given.host}",
            f"--port={given.port}",
            f"--api-key={given.api_key}",
            f"--page-size={given.page_size}",
            f"--reports-port={REPORTS_PORT}",
            f"--kv-events-port={KV_EVENTS_PORT}",
            f"--kv-replay-port={KV_REPLAY_PORT}",
        ]
    )
)
