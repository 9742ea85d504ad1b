"""CPU that a simulated replica spends per streamed event, and whether it keeps its profile's pace.

    python -m bench.bench_simulated_replica [--streams 300] [--tokens 200]

Starts one replica as a process, opens all streams at once, and prints CPU time per event beside the time
that the profile's decode steps alone must take. Needs psutil, and a quiet machine for the pace.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time

import psutil
from evenkeel_simulator.engine.profiles import PROFILES

PROFILE = "a100-llama3.1-8b"
TEXT = "the sea is red " * 40


async def stream(host: str, port: int, *, number: int, tokens: int) -> int:
    """One stream, read to its end; its events."""
    wish = {"prompt": f"{number} {TEXT}", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    body = json.dumps({"model": "sim", **wish}).encode()
    reader, writer = await asyncio.open_connection(host, port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    events = (await reader.read()).count(b"data: {")
    writer.close()
    return events


async def measure(process: subprocess.Popen[str], *, streams: int, tokens: int) -> None:
    """Run the load and print what it cost."""
    assert process.stdout is not None
    host, port = json.loads(process.stdout.readline())["url"].removeprefix("http://").split(":")
    replica = psutil.Process(process.pid)
    before, start_s = replica.cpu_times(), time.perf_counter()
    counts = await asyncio.gather(
        *(stream(host, int(port), number=i, tokens=tokens) for i in range(streams))
    )
    wall_s = time.perf_counter() - start_s
    after = replica.cpu_times()
    cpu_s = after.user + after.system - before.user - before.system
    events = sum(counts)
    print(f"{streams} streams of {tokens} tokens: {events} events in {wall_s:.2f} s")
    print(
        f"CPU {cpu_s:.2f} s ({cpu_s / wall_s:.0%} of a core), {cpu_s / events * 1e6:.1f} us an event"
    )
    step_ms = PROFILES[PROFILE].decode_ms + PROFILES[PROFILE].decode_request_ms * streams
    print(f"decode steps alone, without prefill and KV reads: {tokens * step_ms / 1000:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=200)
    load = parser.parse_args()
    command = [sys.executable, "-m", "evenkeel_simulator.server", "--model", "sim", "--port", "0"]
    command += ["--profile", PROFILE, "--kv-events-port", "0", "--reports-port", "0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        try:
            asyncio.run(measure(process, streams=load.streams, tokens=load.tokens))
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
