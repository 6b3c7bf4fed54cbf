"""The gateway's figures of the last minutes: bounded, by bucket, with accurate percentiles."""

import random

import pytest

from gateway.metrics.activity import BUCKET_S, WINDOW_S, Activity


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def activity(clock: Clock) -> Activity:
    return Activity(clock)


def test_report_is_empty_at_first(activity: Activity):
    report = activity.report()
    assert (report.bucket_s, report.window_s, report.buckets) == (5.0, 900.0, ())


def test_figures_go_into_the_current_bucket(activity: Activity, clock: Clock):
    activity.prefilled(100, 60)
    activity.ended(0.2)
    clock.now += BUCKET_S - 0.01
    activity.ended(None)
    clock.now += 3 * BUCKET_S
    activity.rejected()
    early, late = activity.report().buckets
    assert (early.queries, early.first_tokens, early.prompt_tokens, early.cached_tokens) == (2, 1, 100, 60)
    assert (early.rejected, early.ago_s) == (0, pytest.approx(4 * BUCKET_S - 0.01))
    assert (late.queries, late.rejected, late.ttft_p50_ms, late.ttft_p95_ms) == (0, 1, None, None)


def test_buckets_older_than_the_window_are_dropped(activity: Activity, clock: Clock):
    activity.rejected()
    clock.now += WINDOW_S
    assert len(activity.report().buckets) == 1
    clock.now += 0.01
    assert activity.report().buckets == ()


def test_percentiles_are_accurate(activity: Activity):
    chance = random.Random(7)
    seconds = sorted(chance.lognormvariate(-2, 1.2) for _ in range(5000))
    for first_token_s in chance.sample(seconds, k=len(seconds)):
        activity.ended(first_token_s)
    (bucket,) = activity.report().buckets
    assert bucket.ttft_p50_ms == pytest.approx(1000 * seconds[2499], rel=0.025)
    assert bucket.ttft_p95_ms == pytest.approx(1000 * seconds[4749], rel=0.025)


@pytest.mark.parametrize("first_token_s", [0.0, 1e-9, 1e9])
def test_any_duration_can_be_counted(activity: Activity, first_token_s: float):
    activity.ended(first_token_s)
    assert activity.report().buckets[0].ttft_p50_ms is not None


def test_memory_is_bounded(activity: Activity, clock: Clock):
    for number in range(20_000):
        activity.ended(10 ** (number % 90 / 10 - 5))
        clock.now += 1.0
    assert len(activity._buckets) == WINDOW_S / BUCKET_S
    clock.now -= clock.now % BUCKET_S
    for number in range(20_000):
        activity.ended(10 ** (number % 9000 / 1000 - 5))
    assert len(activity._buckets[-1].first_tokens._classes) < 400


async def test_route_reports_queries(served):
    for _ in range(2):
        assert (await served.client.post("/query", json={"query": "x"})).status_code == 200
    assert (await served.client.post("/query", json={"query": "x", "collection": "none"})).status_code == 404
    report = (await served.client.get("/v1/admin/cache/activity")).json()
    total = {name: sum(bucket[name] for bucket in report["buckets"]) for name in report["buckets"][0]}
    # The fake engine has three tokens of each prompt cached.
    assert (total["queries"], total["first_tokens"], total["rejected"], total["cached_tokens"]) == (3, 2, 1, 6)
    assert total["prompt_tokens"] > 6
