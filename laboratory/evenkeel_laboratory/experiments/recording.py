"""Recordings of routers as workloads: what `evenkeel plan` replays.

A recording is an open loop: arrivals are those that were recorded, whatever the replayed fleet answers. Blocks of text have
no token counts, so all blocks get the mean of the recording. Outputs are not part of a later prompt's prefix, because the
recording has no hashes of outputs: where the fleet reused them, the replay computes these tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from evenkeel_contract.recording import FleetLine, Header, RecordingError, RequestLine, decode_line
from evenkeel_simulator.engine.cache import Segment
from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.traces import SHOWN_FAULTS, TraceError, read_text
from evenkeel_simulator.traffic.workload import Call, Client, Program, Workload, tenant_of

_LEAST_BLOCKS = 4  # fewer say little about the tokens of a block


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """All files of a fleet's routers on one clock, which starts with the first arrival."""

    header: Header
    """The newest one: its settings are today's."""
    requests: Sequence[RequestLine]
    """Requests that a replica served, by arrival."""
    unserved: Sequence[RequestLine]
    """Requests that are not replayed, because no replica served them: refused, failed, or given up."""
    replicas: int
    """Number of replicas that took requests for most of the time."""
    replica_counts: frozenset[int]

    @property
    def failed(self) -> Mapping[str, int]:
        """Outcome → requests that are not replayed, the most frequent first."""
        counts = Counter(one.outcome or "no output" for one in self.unserved)
        return dict(counts.most_common())

    @property
    def end_s(self) -> float:
        """Time of the last arrival, seconds."""
        return self.requests[-1].arrival_s

    def block_tokens(self) -> float:
        """Tokens of a block: exact in tokens mode, otherwise the mean."""
        if self.header.block_tokens is not None:
            return self.header.block_tokens
        long = [one for one in self.requests if len(one.blocks) >= _LEAST_BLOCKS]
        blocks = sum(len(one.blocks) + 0.5 for one in long)
        return max(1.0, sum(one.input_tokens for one in long) / blocks) if blocks else 1.0

    def workload(self, weights: Mapping[str, float]) -> Workload:
        """Requests of the recording as a workload; `weights` by tenant, client or `tenant/*`, as in the header."""
        block_tokens = self.block_tokens()
        programs = [
            Program(
                id=str(number),
                client=one.client,
                arrival_s=one.arrival_s,
                calls=(_call(one, block_tokens),),
                adapter=one.adapter or None,
            )
            for number, one in enumerate(self.requests)
        ]
        names = sorted({one.client for one in self.requests})
        clients = {name: client_of(name, weights) for name in names}
        return Workload(
            self.header.service, programs, clients, size=len(programs), duration_s=self.end_s
        )


def client_of(name: str, weights: Mapping[str, float]) -> Client:
    """A client with the weights of a header."""
    tenant = tenant_of(name)
    own = weights.get(name, weights.get(f"{tenant}/*", 1.0))
    return Client(name, tenant, own, weights.get(tenant, 1.0))


def read_recording(path: Path) -> Recording:
    """A file of `evenkeel record fetch`, plain or gzip; raises `TraceError` naming file, line and field."""
    headers: list[Header] = []
    requests: list[tuple[Header, RequestLine]] = []
    fleets: list[tuple[Header, FleetLine]] = []
    faults: list[str] = []
    for number, text in enumerate(read_text(path).splitlines(), start=1):
        if not text.strip():
            continue
        try:
            line = decode_line(text.encode())
        except RecordingError as error:
            faults.append(f"{path}, line {number}: {error}")
            continue
        if isinstance(line, Header):
            headers.append(line)
        elif not headers:
            faults.append(f"{path}, line {number}: stands before the header; fetch the file again")
        elif isinstance(line, FleetLine):
            fleets.append((headers[-1], line))
        else:
            requests.append((headers[-1], line))
    if faults:
        raise TraceError("\n".join(faults[:SHOWN_FAULTS]))
    served = [(header, one) for header, one in requests if one.replica and one.output_tokens]
    if not served:
        raise TraceError(
            f"{path}: holds no request that a replica served; record while clients send requests"
        )
    start_s = min(header.started_unix + one.arrival_s for header, one in served)
    moved = sorted(
        (_moved(one, header.started_unix - start_s) for header, one in served),
        key=lambda one: one.arrival_s,
    )
    counts = _replica_counts(fleets, moved, start_s)
    return Recording(
        header=max(headers, key=lambda header: header.started_unix),
        requests=moved,
        unserved=[
            _moved(one, header.started_unix - start_s)
            for header, one in requests
            if not (one.replica and one.output_tokens)
        ],
        replicas=max(counts, key=counts.__getitem__),
        replica_counts=frozenset(counts),
    )


def _replica_counts(
    fleets: Sequence[tuple[Header, FleetLine]], requests: Sequence[RequestLine], start_s: float
) -> dict[int, float]:
    """Number of replicas → seconds in which so many took requests."""
    router = fleets[0][0].router if fleets else ""
    changes = sorted(
        (max(0.0, header.started_unix + line.at_s - start_s), len(line.replicas))
        for header, line in fleets
        if header.router == router
    )
    end_s = requests[-1].arrival_s
    found: dict[int, float] = {}
    ends = [*(at_s for at_s, _ in changes[1:]), end_s][: len(changes)]
    for (at_s, replicas), until_s in zip(changes, ends, strict=True):
        if replicas:
            found[replicas] = found.get(replicas, 0.0) + max(0.0, min(until_s, end_s) - at_s)
    return found or {len({one.replica for one in requests}): 0.0}


_SERVICE = frozenset({"replica_failed", "unavailable", "timeout"})
"""Outcomes that are failures of the service."""


def records_of(recording: Recording) -> list[Record]:
    """The run that was recorded, for measures of runs: those that no replica served too."""
    return [
        *(_record(one, "finished") for one in recording.requests),
        *(_record(one, _status(one.outcome)) for one in recording.unserved),
    ]


def _status(outcome: str) -> str:
    if outcome in _SERVICE:
        return "failed"
    return "unfinished" if outcome == "client_gone" else "rejected"


def _record(one: RequestLine, status: str) -> Record:
    served, given_up = status == "finished", status == "unfinished"
    first_s = one.duration_s if one.ttft_s is None else one.ttft_s
    end_s = one.arrival_s + one.duration_s
    return Record(
        id="",
        program="",
        client=one.client,
        replica=-1,
        status=status,
        arrival_s=one.arrival_s,
        admitted_s=end_s if given_up else None,  # it waited until its client left
        first_token_s=one.arrival_s + first_s if served else None,
        finished_s=end_s if served else None,
        input_tokens=one.input_tokens,
        cached_tokens=one.cached_tokens,
        extend_tokens=one.input_tokens - one.cached_tokens if served else 0,
        output_tokens=one.output_tokens if served else 0,
        retractions=0,
    )


def _moved(one: RequestLine, by_s: float) -> RequestLine:
    return msgspec.structs.replace(one, arrival_s=max(0.0, one.arrival_s + by_s))


def _call(one: RequestLine, block_tokens: float) -> Call:
    tokens = max(1, one.input_tokens)
    whole = min(len(one.blocks), int(tokens / block_tokens))
    ends = [round(block_tokens * number) for number in range(whole + 1)]
    prompt = tuple(
        Segment(one.blocks[number], ends[number + 1] - ends[number]) for number in range(whole)
    )
    return Call(
        input_tokens=tokens,
        output_tokens=one.output_tokens,
        max_output_tokens=one.output_tokens,
        prompt=prompt,
    )
