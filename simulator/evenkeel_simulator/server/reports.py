"""The replica's totals per client, on request (contract `reports`, design R3).

Place in the flow: router's DEALER → **ROUTER socket** → engine's accounts and the policy's state → answer.
The answer begins anew when the asker does not know this incarnation, and otherwise holds the clients that
changed since the sequence it names. A question that is none gets no answer; it is counted.

The surprising thing: deficits and queues change without a token being served (a refill touches every queued
client), so what changed is found by comparing with the last answer, not by watching the accounts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import zmq
import zmq.asyncio
from evenkeel_contract.reports import (
    REPORT_VERSION,
    ClientReport,
    Report,
    ReportError,
    ReportRequest,
    decode_request,
    encode,
)
from evenkeel_fairshare.replica.accounts import ClientTotals
from evenkeel_fairshare.replica.contract import ClientState

from evenkeel_simulator.server.kv_events import bind

MAX_CLIENTS: Final = 10_000
"""Clients of one answer; the asker gets the others by asking again from the answer's sequence."""
MAX_QUESTION_BYTES: Final = 4096


class ReportBook:
    """Numbers the changes of every client's report, so that an answer may hold only what is new."""

    def __init__(self, *, incarnation: str, policy: str, max_clients: int = MAX_CLIENTS) -> None:
        self.incarnation = incarnation
        self._policy = policy
        self._max_clients = max_clients
        self._sequence = 0
        self._latest: dict[str, tuple[int, ClientReport]] = {}

    def update(self, totals: Mapping[str, ClientTotals], states: Mapping[str, ClientState]) -> None:
        """Take over what is true now; every client whose report differs gets the next sequence number."""
        # A client that waited and left without being served is in neither map: the book remembers it.
        for client in dict.fromkeys((*totals, *states, *self._latest)):
            report = _report(client, totals.get(client, _NOTHING), states.get(client, _STATELESS))
            known = self._latest.get(client)
            if known is None or known[1] != report:
                self._sequence += 1
                # Re-inserting keeps the book in the order of its sequence numbers.
                self._latest.pop(client, None)
                self._latest[client] = (self._sequence, report)

    def answer(self, question: ReportRequest) -> Report:
        """What changed since the asker's sequence; from the start if it means another incarnation."""
        since = question.since if question.incarnation == self.incarnation else 0
        if not 0 <= since <= self._sequence:
            since = 0  # a number this incarnation never gave
        news = [entry for entry in self._latest.values() if entry[0] > since][: self._max_clients]
        return Report(
            version=REPORT_VERSION,
            incarnation=self.incarnation,
            sequence=news[-1][0] if news else since,
            since=since,
            policy=self._policy,
            clients=tuple(report for _, report in news),
        )


_NOTHING: Final = ClientTotals()
_STATELESS: Final = ClientState(deficit=0.0, tenant_deficit=0.0, waiting=0)


def _report(client: str, served: ClientTotals, state: ClientState) -> ClientReport:
    return ClientReport(
        client=client,
        extend_tokens=served.extend_tokens,
        cached_tokens=served.cached_tokens,
        output_tokens=served.output_tokens,
        service=served.service,
        normalised=served.normalised,
        tenant_normalised=served.tenant_normalised,
        requests=served.requests,
        deficit=state.deficit,
        tenant_deficit=state.tenant_deficit,
        waiting=state.waiting,
        running=served.running,
        seed=state.seed,
        tenant_seed=state.tenant_seed,
    )


class ReportServer:
    """The ROUTER socket. Open and close it on the event loop that uses it."""

    def __init__(
        self,
        book: ReportBook,
        *,
        refresh: Callable[[], None],
        refused: Callable[[], None],
        host: str,
        port: int,
    ) -> None:
        """Binds at once; port 0 lets the system choose. Raises `zmq.ZMQError` if the port is taken.

        `refresh` brings the book up to date and is called before every answer, `refused` for every question
        that is none.
        """
        self._book = book
        self._refresh = refresh
        self._refused = refused
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_QUESTION_BYTES)
        self.port = bind(self._socket, host, port)
        self._answers = asyncio.create_task(self._serve())

    async def close(self) -> None:
        """Stop answering."""
        self._answers.cancel()
        await asyncio.gather(self._answers, return_exceptions=True)
        self._context.destroy(linger=0)

    async def _serve(self) -> None:
        while True:
            frames = await self._socket.recv_multipart()
            try:
                question = decode_request(frames[-1])
            except ReportError:
                self._refused()
                continue
            self._refresh()
            # Everything before the question is the way back: the asker, and an empty frame from a REQ.
            await self._socket.send_multipart([*frames[:-1], encode(self._book.answer(question))])
