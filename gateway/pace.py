"""The gateway's pace: times that it keeps to, and that nobody who runs it has to choose."""

from typing import NamedTuple


class Pace(NamedTuple):
    """Times in seconds. Tests shorten them.

    - ``readiness_interval_s``: between two checks of the other parts. ``readiness_timeout_s``: for a part's answer.
    - ``hold_back_s``: how long a query waits in the queue before its stream starts. Until then it can be refused.
    - ``first_step_timeout_s``: from admission to the engine's first step.
    - ``rewrite_timeout_s``: for the model to rewrite a follow-up, which is joined after it.
    - ``body_timeout_s``: for a client to send a body. ``send_timeout_s``: for a client to read a piece of a stream.
    - ``ping_s``: between the comment lines that keep an idle stream alive.
    - ``retry_after_s``: what a 429 or 503 says if its end is unknown.
    - ``drain_s``: how long shutdown waits for leases to be released.
    """

    readiness_interval_s: float = 1.0
    readiness_timeout_s: float = 5.0
    hold_back_s: float = 1.0
    first_step_timeout_s: float = 180.0
    rewrite_timeout_s: float = 5.0
    body_timeout_s: float = 300.0
    send_timeout_s: float = 60.0
    ping_s: float = 15.0
    retry_after_s: int = 2
    drain_s: float = 10.0
