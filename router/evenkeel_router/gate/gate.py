"""The gate of one replica: its waiting requests, and which of them go to the engine next (R12).

    arrive → queue (the policy's) → admit, while a window has room → begun → progress … → leave

The policy is the one that an engine with the plug-in runs, with the same calls. The router stands for the engine: it predicts
extend tokens from its prefix index, counts output by a stream's events, and corrects both by the usage that the engine reports.
The match of a request is that of its selection; it does not change while the request waits.

The policy outlives the replica's process, so debts are kept over a restart. The windows start again.
"""

from __future__ import annotations

from collections.abc import Collection

from evenkeel_fairshare.fleet.contract import Usage
from evenkeel_fairshare.replica.contract import AdmissionResult, ReplicaPolicy

from evenkeel_router.gate.window import STREAMED, WHOLE, GatedRequest, Window


class Gate:
    """Deterministic; times are passed in, seconds of one clock."""

    def __init__(self, policy: ReplicaPolicy) -> None:
        self.policy = policy
        self._waiting_streamed = 0
        self.sent: dict[GatedRequest, None] = {}
        """Requests at the replica."""
        self.restarted()

    def restarted(self) -> None:
        """A new process answers: nothing is known of its speed."""
        self.streamed = Window(STREAMED)
        self.whole = Window(WHOLE)

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self.policy)

    @property
    def unanswered(self) -> int:
        """Requests at the replica that have not begun, as far as the router sees."""
        return len(self.streamed) + len(self.whole)

    @property
    def has_work(self) -> bool:
        """Whether a request waits for a window that has room."""
        streamed = self._waiting_streamed
        whole = len(self.policy) - streamed
        return (streamed > 0 and self.streamed.has_room) or (whole > 0 and self.whole.has_room)

    def arrive(self, request: GatedRequest, now_s: float) -> None:
        """A request waits here."""
        self.policy.arrive(request, now_s)
        self._waiting_streamed += request.streams

    def admit(self, now_s: float) -> list[GatedRequest]:
        """The requests that go to the replica now, in this order."""
        admitted: list[GatedRequest] = []
        if not self.has_work:
            return admitted
        admissions = self.policy.admissions(now_s)
        proposed = next(admissions, None)
        while isinstance(proposed, GatedRequest):
            answer = self._answer(proposed, now_s)
            if answer is AdmissionResult.ADMITTED:
                admitted.append(proposed)
            try:
                proposed = admissions.send(answer)
            except StopIteration:
                break
            if not self.has_work:
                break
        admissions.close()
        return admitted

    def begun(self, request: GatedRequest, now_s: float, *, output_tokens: int = 0) -> None:
        """The first of an answer came. `output_tokens`: of a whole answer."""
        self._window(request).begun(
            request, now_s, output_tokens=output_tokens, others_wait=len(self.policy) > 0
        )

    def progress(self, request: GatedRequest, output_tokens: int) -> None:
        """A request at the replica has produced so many output tokens in all: charge those that are new."""
        new = output_tokens - request.output_tokens
        if new <= 0:
            return
        request.output_tokens = output_tokens
        due = request.due_tokens(new)
        if due > 0:
            self.policy.progress(request, due)

    def leave(self, request: GatedRequest, now_s: float, usage: Usage | None) -> None:
        """A request ended, waiting or at the replica.

        `usage`: what it used; None if that is unknown, and then its charge stands. Nothing: the replica computed nothing for it.
        """
        if request in self.sent:
            del self.sent[request]
            self._window(request).left(request)
            if usage is not None:
                extend_tokens = max(0, usage.input_tokens - usage.cached_tokens)
                self.progress(request, usage.output_tokens)
                self.policy.corrected(
                    request, extend_tokens=extend_tokens, output_tokens=usage.output_tokens
                )
        else:
            self._waiting_streamed -= request.streams
        self.policy.leave(request, now_s)

    def waiting(self) -> Collection[GatedRequest]:
        """The requests that wait, in any order."""
        return [one for one in self.policy.waiting() if isinstance(one, GatedRequest)]

    def _answer(self, request: GatedRequest, now_s: float) -> AdmissionResult:
        window = self._window(request)
        if not window.has_room:
            return AdmissionResult.LATER  # the other window has room
        request.extend_tokens = request.uncached_tokens
        self._waiting_streamed -= request.streams
        self.sent[request] = None
        window.sent(request, now_s)
        return AdmissionResult.ADMITTED

    def _window(self, request: GatedRequest) -> Window:
        return self.streamed if request.streams else self.whole
