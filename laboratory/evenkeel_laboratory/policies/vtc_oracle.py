"""VTC with known output lengths, exact or with an error: the rows "oracle" and "±50 %" of the VTC paper's tables 2 to 6."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from evenkeel_fairshare.cost import Cost
from evenkeel_fairshare.replica.contract import Request
from evenkeel_fairshare.replica.vtc_predict import PredictedVtc


class OracleVtc(PredictedVtc):
    """Algorithm 3 with the prediction drawn from [(1 - error)·L, (1 + error)·L], L = `Request.expected_output_tokens`.

    The draw depends on the request's id and `seed` only, so a retracted request has the same prediction again. It is rounded to
    whole tokens, so a finished request has paid h(np, nq) exactly; the paper's artifact does not round. Without a known length the
    prediction is that of VTCPredict.
    """

    name: ClassVar[str] = "VTCOracle"

    def __init__(self, *, cost: Cost | None = None, error: float = 0.0, seed: int = 0) -> None:
        """`error`: from 0, an exact prediction, to 1. Raises `ValueError` outside."""
        super().__init__(cost=cost)
        if not 0 <= error <= 1:
            raise ValueError(f"prediction_error is {error}, must be from 0 to 1")
        self._error = error
        self._seed = seed

    def _predict(self, request: Request) -> int:
        drawn = drawn_length(request, error=self._error, seed=self._seed)
        return super()._predict(request) if drawn is None else drawn


def drawn_length(request: Request, *, error: float, seed: int) -> int | None:
    """A prediction of the request's true length, None where that is not known; `error` as in `OracleVtc`."""
    length = request.expected_output_tokens
    if length is None or not error:
        return length
    return round(Random(f"{seed}/{request.id}").uniform(1 - error, 1 + error) * length)
