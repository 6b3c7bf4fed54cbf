"""What is counted of a fault's queries, and what is a miss."""

import pytest

from examine.measuring.engines import Generation
from protocol.errors import Unavailable
from protocol.generation import PrefillResult, TokenLogprob
from protocol.kv import KvRead
from ragtree_lab.sharing.fault_rows import Phase, phase, row
from ragtree_lab.sharing.open_loop import Arrived


def arrived(ttft_ms: float, token: int = 7, peers: tuple[KvRead, ...] = (), logprob: float = -1.0) -> Arrived:
    answer = Generation(ttft_ms, PrefillResult(10, 5, 1.0, reads=peers), "", (TokenLogprob(token, logprob),))
    return Arrived(ttft_ms, ttft_ms, ttft_ms / 1000, answer)


READ = (KvRead("there", 64, 0.01),)
FAILED = (KvRead("there", 0, 1.0, True),)


def test_queries_are_compared_with_the_same_ones_when_they_were_computed():
    computed = [arrived(100), arrived(300, token=8)]
    came = [arrived(50, peers=READ), arrived(1301, token=8, peers=FAILED), arrived(1099, token=9), None]
    found = phase(came, computed, 3, 1.0)
    assert found == Phase(
        queries=4,
        wrong=2,
        largest_logprob_difference=0.0,
        read_share=0.25,
        failures=3,
        late=2,
        largest_delay_ms=1001,
        ttft_p50_ms=1099,
        ttft_max_ms=1301,
    )


def test_logprobs_are_compared_where_tokens_are_equal():
    came = [arrived(1, logprob=-1.5), arrived(1, token=9, logprob=-4.0)]
    assert phase(came, [arrived(1), arrived(1)], 0, 1.0).largest_logprob_difference == 0.5


def test_a_phase_without_any_answer_is_an_error():
    with pytest.raises(Unavailable):
        phase([None, None], [arrived(1)], 0, 1.0)


def summary(**changes: float) -> Phase:
    good = Phase(
        queries=10,
        wrong=0,
        largest_logprob_difference=0.0,
        read_share=1.0,
        failures=2,
        late=0,
        largest_delay_ms=900,
        ttft_p50_ms=100,
        ttft_max_ms=900,
    )
    return Phase(**{name: getattr(good, name) for name in good.__struct_fields__} | changes)


GOOD = {"before": summary(), "during": summary(), "after": summary(), "served_again_s": 30.0, "fault": "cut"}


def judged(**changes):
    return row(computed=[arrived(100), arrived(200)], timeout_s=1.0, **GOOD | changes)


def test_a_fault_without_a_miss_passes():
    found = judged()
    assert (found.passed, found.misses) == (True, [])
    assert (found.wrong, found.late, found.failures) == (0, 0, 4)
    assert (found.computed_ttft_p50_ms, found.computed_ttft_max_ms) == (150, 200)


@pytest.mark.parametrize(
    ("changes", "miss"),
    [
        ({"before": summary(read_share=0.4)}, "only 40% of the queries read at the peer"),
        ({"before": summary(late=2)}, "2 queries were as late before the fault"),
        ({"before": summary(wrong=1)}, "1 answers are wrong or missing"),
        ({"during": summary(wrong=2)}, "2 answers are wrong or missing"),
        ({"after": summary(wrong=3)}, "3 answers are wrong or missing"),
        ({"during": summary(late=1), "after": summary(late=2)}, "3 queries took more than 1 s longer than computing"),
        ({"during": summary(failures=0)}, "no failure was counted"),
        ({"served_again_s": None}, "did not serve again within 120 s"),
    ],
)
def test_each_miss_is_named(changes, miss):
    found = judged(**changes)
    assert not found.passed
    (said,) = found.misses
    assert miss in said


def test_a_link_that_is_only_slow_need_not_fail():
    assert judged(fault="slow", during=summary(failures=0)).passed


def test_computing_must_keep_up_with_the_rate():
    found = row(computed=[arrived(1200)], timeout_s=1.0, **GOOD)
    assert found.misses == ["computing alone does not keep up with the rate, so delays say little"]
