"""The alert rules: their metrics and links exist, and they fire exactly when they should.

Their expressions are evaluated over recorded samples by `promql.py`, not by Prometheus.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from exposed import assert_exists, gateways_metrics, vllms_metrics
from promql import Labels, Series, evaluate, selectors
from promql_parser import parse_duration

ROOT = Path(__file__).parents[3]
GROUPS: list[dict[str, Any]] = yaml.safe_load((ROOT / "helm/ragtree/files/alerts.yaml").read_text())["groups"]
RULES: dict[str, dict[str, Any]] = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
STEP_S = 30.0
HERE = {"namespace": "rag", "job": "ragtree"}
WHERE: Labels = tuple(sorted(HERE.items()))


def series(name: str, shape: str, instance: str = "a", **labels: str) -> Series:
    """A series sampled every 30 s, in promtool's notation: `0+10x60 600x20` rises and then stays.

    ``instance`` is the gateway that was scraped.
    """
    values: list[float] = []
    for start, step, count in re.findall(r"(-?[\d.]+)(?:\+([\d.]+))?x(\d+)", shape):
        values += [float(start) + float(step or 0) * number for number in range(int(count) + 1)]
    samples = [(STEP_S * number, value) for number, value in enumerate(values)]
    return Series(name, {**HERE, "instance": instance, **labels}, samples)


def firing(alert: str, recorded: Sequence[Series]) -> set[Labels]:
    """Label sets that fire at the end of the recording: the expression held for the rule's duration."""
    rule = RULES[alert]
    end = max(time for one in recorded for time, _ in one.samples)
    times = [end - STEP_S * back for back in range(int(parse_duration(rule["for"]).total_seconds() / STEP_S) + 1)]
    assert times[-1] >= 0, "the recording is too short"
    return set.intersection(*(set(evaluate(rule["expr"], recorded, time)) for time in times))


HOUR = "x120"


def queries(**by_outcome: float) -> list[Series]:
    """An hour of queries, with these counts per 30 s."""
    return [series("ragtree_queries_total", f"0+{rate}{HOUR}", outcome=outcome) for outcome, rate in by_outcome.items()]


def requests(rate: float, status: str = "200", route: str = "/query") -> Series:
    return series("ragtree_http_requests_total", f"0+{rate}{HOUR}", route=route, status=status)


def tokens(**by_source: float) -> list[Series]:
    return [
        series("ragtree_cache_tokens_total", f"0+{rate}{HOUR}", source=source) for source, rate in by_source.items()
    ]


def first_tokens(fast: float, slow: float) -> list[Series]:
    """Queries with a first token within 1 s, and within 30 s."""
    bounds = {"0.5": 0.0, "1.0": fast, "10.0": fast, "30.0": fast + slow, "+Inf": fast + slow}
    name = "ragtree_time_to_first_token_seconds_bucket"
    return [series(name, f"0+{rate}{HOUR}", le=bound) for bound, rate in bounds.items()]


def wasted(rate: float) -> Series:
    return series("ragtree_speculation_wasted_tokens_total", f"0+{rate}{HOUR}")


def compared(approximation: str = "composing", **by_outcome: float) -> list[Series]:
    return [
        series("ragtree_shadow_answers_total", f"0+{rate}{HOUR}", approximation=approximation, outcome=outcome)
        for outcome, rate in by_outcome.items()
    ]


def kv_disk(used: float, evictions: float) -> list[Series]:
    return [
        series("ragtree_cache_bytes", f"{used}{HOUR}", tier="disk"),
        series("ragtree_cache_capacity_bytes", f"100{HOUR}", tier="disk"),
        series("ragtree_cache_bytes", f"100{HOUR}", tier="gpu"),
        series("ragtree_cache_capacity_bytes", f"100{HOUR}", tier="gpu"),
        series("ragtree_cache_evictions_total", f"0+{evictions}{HOUR}", tier="disk"),
        series("ragtree_cache_evictions_total", f"0+50{HOUR}", tier="gpu"),
    ]


def disk(free: str) -> list[Series]:
    return [series("ragtree_data_disk_bytes", f"100{HOUR}"), series("ragtree_data_disk_free_bytes", free)]


def ingested(waiting: float = 0, **by_status: float) -> list[Series]:
    """Documents of one retriever, as two gateways report them."""
    return [
        *(
            series("ragtree_ingest_documents_total", f"0+{rate}{HOUR}", instance, status=status)
            for status, rate in by_status.items()
            for instance in ("a", "b")
        ),
        *(series("ragtree_ingest_queue_depth", f"{waiting}{HOUR}", instance) for instance in ("a", "b")),
    ]


FIRES: dict[str, list[list[Series]]] = {
    "RagtreeAbsent": [[requests(1)]],
    "RagtreePartNotReady": [
        [
            series("ragtree_part_ready", f"1{HOUR}", "a", part="engine"),
            series("ragtree_part_ready", f"0{HOUR}", "b", part="engine"),
        ]
    ],
    "RagtreeNothingAnswered": [
        [requests(1, "503"), *queries(completed=0, failed=0)],
        [requests(1), *queries(completed=0, failed=1)],
        [requests(1, route="/v1/chat/completions")],
        [
            requests(1),
            series("ragtree_queries_total", "0+5x80 400x40", outcome="completed"),
        ],
    ],
    "RagtreeQueriesFail": [queries(completed=9, failed=1, cancelled=0)],
    "RagtreeServerErrors": [[requests(97), requests(3, "500", "/v1/collections")]],
    "RagtreeRefuses": [
        [requests(9), requests(1, "503"), series("ragtree_requests_rejected_total", f"0+1{HOUR}", reason=reason)]
        for reason in ("overloaded", "engine_not_ready", "engine_died", "unavailable")
    ],
    "RagtreeFirstTokenSlow": [first_tokens(fast=90, slow=10)],
    "RagtreeQueueDeep": [[series("ragtree_queue_depth", f"65{HOUR}"), series("ragtree_queue_depth", f"65{HOUR}", "b")]],
    "RagtreeAnswersPartial": [[series("ragtree_retrieval_partial_total", f"0+1{HOUR}"), *queries(completed=50)]],
    "RagtreeHitRateLow": [
        [*tokens(computed=90, gpu=10, composed=0), *queries(completed=10)],
        [*tokens(computed=90, composed=0), *queries(completed=10)],
    ],
    "RagtreeApproximateAnswersDiffer": [
        compared(same=1, different=2, failed=0),
        # Those of one approximation alone.
        [*compared(same=9, different=0, failed=0), *compared("dependency", same=1, different=2, failed=0)],
    ],
    "RagtreeSpeculationWasteful": [[wasted(30), *tokens(computed=100, gpu=900)]],
    "RagtreePeersFail": [[series("ragtree_cache_peer_failures_total", f"0+1{HOUR}")]],
    "RagtreeInstanceRefused": [[series("ragtree_instances", f"1{HOUR}", state="refused")]],
    "RagtreeKvDiskNearlyFull": [kv_disk(used=99, evictions=5)],
    "RagtreeDataDiskNearlyFull": [disk(f"10{HOUR}")],
    "RagtreeDataDiskFull": [disk(f"4{HOUR}")],
    "RagtreeIngestionFails": [ingested(stored=8, failed=2)],
    "RagtreeIngestionStuck": [ingested(waiting=3, stored=0, failed=0)],
}

SILENT: dict[str, list[list[Series]]] = {
    "RagtreeAbsent": [[series("ragtree_build_info", f"1{HOUR}", version="1")]],
    "RagtreePartNotReady": [
        [series("ragtree_part_ready", f"1{HOUR}", part="engine")],
        # Missing for two minutes only.
        [series("ragtree_part_ready", "1x116 0x3", part="engine")],
    ],
    "RagtreeNothingAnswered": [
        [requests(1), *queries(completed=1, failed=9)],
        [requests(1, "401"), *queries(completed=0)],
        [requests(1, route="/metrics"), *queries(completed=0)],
        [requests(0), *queries(completed=0)],
    ],
    "RagtreeQueriesFail": [
        queries(completed=99, failed=1),
        queries(completed=1, refused=99, failed=0),
        queries(completed=0, failed=0),
        # One query failed; no queries after the first minute.
        [series("ragtree_queries_total", "0x110 1x10", outcome="failed")],
    ],
    "RagtreeServerErrors": [[requests(100), requests(0.5, "500")], [requests(1), requests(9, "422")]],
    "RagtreeRefuses": [
        [
            requests(9),
            requests(1, "429"),
            series("ragtree_requests_rejected_total", f"0+1{HOUR}", reason="rate_limited"),
        ],
        [requests(99), series("ragtree_requests_rejected_total", f"0+1{HOUR}", reason="overloaded")],
        # Monitoring requests do not count.
        [
            requests(900, route="/healthz"),
            requests(1),
            series("ragtree_requests_rejected_total", f"0{HOUR}", reason="overloaded"),
        ],
    ],
    "RagtreeFirstTokenSlow": [first_tokens(fast=98, slow=2), first_tokens(fast=0, slow=0)],
    "RagtreeQueueDeep": [
        [series("ragtree_queue_depth", f"40{HOUR}"), series("ragtree_queue_depth", f"40{HOUR}", "b")],
        [series("ragtree_queue_depth", "0x116 200x3")],
    ],
    "RagtreeAnswersPartial": [[series("ragtree_retrieval_partial_total", f"0+0{HOUR}"), *queries(completed=50)]],
    "RagtreeHitRateLow": [
        [*tokens(computed=50, gpu=30, host=20, composed=0), *queries(completed=10)],
        [*tokens(computed=100, composed=0), *queries(completed=0.01)],
    ],
    "RagtreeApproximateAnswersDiffer": [
        compared(same=2, different=1, failed=0),
        compared(same=0, different=0.1, failed=1),
        compared(same=0, different=0, failed=0),
    ],
    "RagtreeSpeculationWasteful": [[wasted(10), *tokens(computed=100)], [wasted(0), *tokens(computed=0)]],
    "RagtreePeersFail": [
        [series("ragtree_cache_peer_failures_total", f"0+0.1{HOUR}")],
        # Failures of the last few minutes only.
        [series("ragtree_cache_peer_failures_total", "0x112 10x7")],
    ],
    "RagtreeInstanceRefused": [
        [
            series("ragtree_instances", f"0{HOUR}", state="refused"),
            series("ragtree_instances", f"1{HOUR}", state="serving"),
        ]
    ],
    "RagtreeKvDiskNearlyFull": [kv_disk(used=99, evictions=0), kv_disk(used=50, evictions=5)],
    "RagtreeDataDiskNearlyFull": [disk(f"20{HOUR}"), disk("50x110 10x9")],
    "RagtreeDataDiskFull": [disk(f"10{HOUR}")],
    "RagtreeIngestionFails": [ingested(stored=99, failed=1), ingested(stored=0, failed=0)],
    "RagtreeIngestionStuck": [ingested(waiting=3, stored=1), ingested(waiting=0, stored=0)],
}


def cases(table: dict[str, list[list[Series]]]) -> Iterator[Any]:
    return (
        pytest.param(alert, recorded, id=f"{alert}-{number}")
        for alert, many in table.items()
        for number, recorded in enumerate(many)
    )


@pytest.mark.parametrize(("alert", "recorded"), cases(FIRES))
def test_alert_fires(alert: str, recorded: list[Series]):
    (fired,) = firing(alert, recorded)
    assert alert == "RagtreeAbsent" or set(WHERE) <= set(fired), "the alert must name the deployment"


@pytest.mark.parametrize(("alert", "recorded"), cases(SILENT))
def test_alert_stays_silent(alert: str, recorded: list[Series]):
    assert firing(alert, recorded) == set()


def test_counter_reset_fires_no_alert():
    restarted = [series("ragtree_queries_total", "0+9x60 0+9x60", outcome=outcome) for outcome in ("completed",)]
    failed = series("ragtree_queries_total", "1000x60 0x60", outcome="failed")
    assert firing("RagtreeQueriesFail", [*restarted, failed]) == set()


def test_alerts_separate_deployments():
    sound = [one._replace(labels={**one.labels, "namespace": "sound"}) for one in queries(completed=900, failed=0)]
    assert firing("RagtreeQueriesFail", [*queries(completed=9, failed=1), *sound]) == {WHERE}


def test_every_rule_has_firing_and_silent_cases():
    assert set(FIRES) == set(SILENT) == set(RULES)
    assert sum(len(group["rules"]) for group in GROUPS) == len(RULES)


async def test_alerts_use_existing_metrics():
    known = {**await gateways_metrics(), **vllms_metrics()}
    for rule in RULES.values():
        for name, labels in selectors(rule["expr"]):
            assert_exists(name, labels, known)


@pytest.mark.parametrize("alert", RULES)
def test_alert_has_severity_summary_and_runbook(alert: str):
    rule = RULES[alert]
    assert re.fullmatch(r"Ragtree[A-Z]\w+", alert)
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert parse_duration(rule["for"]).total_seconds() >= 60
    annotations = rule["annotations"]
    assert set(annotations) == {"summary", "description", "runbook_url"}
    assert all(text.strip() for text in annotations.values())
    page, anchor = annotations["runbook_url"].split("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor in {re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-")) for heading in headings}


def test_every_runbook_section_has_an_alert():
    headings = re.findall(r"^## (Ragtree\w+)$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE)
    # Two thresholds of one problem share a section.
    assert set(headings) == set(RULES) - {"RagtreeDataDiskFull"}
