import threading
from contextlib import suppress

import pytest
from structlog.testing import capture_logs

from generator.tiers.base import KvMissing, TierUnavailable
from generator.tiers.circuit_breaker import CircuitBreaker


class Store:
    """A store whose clock and answers a test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self.error: Exception | None = None
        self.asked = 0
        self.breaker = CircuitBreaker("the store", "reading", lambda: self.now)

    def ask(self) -> None:
        with self.breaker.request():
            self.asked += 1
            if self.error is not None:
                raise self.error

    def is_asked(self) -> bool:
        asked = self.asked
        with suppress(TierUnavailable, KvMissing):
            self.ask()
        return self.asked > asked


@pytest.fixture
def store():
    return Store()


def test_requests_pass_while_the_store_answers(store):
    for _ in range(3):
        assert store.is_asked()
    store.error = KvMissing("no such object")
    for _ in range(3):
        with pytest.raises(KvMissing):
            store.ask()
    assert store.breaker.failures == 0


def test_pauses_double_up_to_a_minute_and_end_with_an_answer(store):
    store.error = TierUnavailable("timeout")
    for pause in (1, 2, 4, 8, 16, 32, 60, 60):
        assert store.is_asked()
        assert not store.is_asked()
        store.now += pause - 0.01
        assert not store.is_asked()
        store.now += 0.02
    assert store.breaker.failures == 8
    store.error = None
    assert store.is_asked()
    assert store.is_asked()
    store.error = TierUnavailable("timeout")
    assert store.is_asked()
    store.now += 1.01
    assert store.is_asked()


def test_a_store_that_has_no_such_object_answers(store):
    store.error = TierUnavailable("timeout")
    assert store.is_asked()
    store.now += 1.01
    store.error = KvMissing("no such object")
    assert store.is_asked()
    assert store.is_asked()


def test_one_request_at_the_end_of_a_pause_decides(store):
    store.error = TierUnavailable("timeout")
    assert store.is_asked()
    store.now += 1.01
    with store.breaker.request(), pytest.raises(TierUnavailable), store.breaker.request():
        pytest.fail("the request before has not ended")
    store.error = None
    assert store.is_asked()


def test_requests_that_fail_together_are_one_failure(store):
    """16 threads wait for the same silent store."""
    meeting = threading.Barrier(16)

    def fail():
        with suppress(TierUnavailable), store.breaker.request():
            meeting.wait(10)
            raise TierUnavailable("timeout")

    threads = [threading.Thread(target=fail) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.breaker.failures == 16
    assert not store.is_asked()
    store.now += 1.01
    assert store.is_asked()


def test_each_change_is_logged_once(store):
    with capture_logs() as logs:
        store.error = TierUnavailable("timeout")
        for _ in range(5):
            store.is_asked()
            store.now += 61
        store.error = None
        for _ in range(3):
            store.is_asked()
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [
        ("the object store fails", "warning"),
        ("the object store works again", "info"),
    ]
    assert all((entry["store"], entry["act"]) == ("the store", "reading") for entry in logs)
    assert logs[0]["error"] == "timeout"
