"""``ragtree bench overhead`` prints one JSON object, with times that fit the fake engine's speed."""

import json

import pytest
from stacks import FAKE, command

pytestmark = [pytest.mark.ray, pytest.mark.prove("lab/ragtree_lab/overhead.py", "gateway/query/")]

# A prefill takes more than a second, so that a busy machine's delays, a third of a second, do not matter next to it.
PREFILL_TOKENS_PER_S = 1000


def test_overhead_fits_the_speed_of_the_fake_engine(tmp_path):
    environment = {
        **FAKE,
        "RAGTREE_GENERATOR__FAKE__PREFILL_TOKENS_PER_S": str(PREFILL_TOKENS_PER_S),
        "RAGTREE_DATA_DIR": str(tmp_path),
    }
    asked = ["bench", "overhead", "--streams", "1,2", "--samples", "2", "--json"]
    ran = command(*asked, timeout_s=300, **environment)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("\n") == 1
    result = json.loads(ran.stdout)
    shared = {"p50_overhead_ms", "p99_overhead_ms", "p50_overhead_share", "per_token_overhead_ms"}
    per_token = {"engine_per_token_ms", "stack_per_token_ms"}
    assert result.keys() == {"prompt_tokens_p50", "by_streams"} | shared
    assert 1200 < result["prompt_tokens_p50"] < 1900

    rows = result["by_streams"]
    assert list(rows) == ["1", "2"]
    prefill_ms = result["prompt_tokens_p50"] / PREFILL_TOKENS_PER_S * 1000
    for streams, row in rows.items():
        sides = {f"{side}_{share}_ms" for side in ("engine", "stack") for share in ("p50", "p99")}
        assert row.keys() == {"streams", "samples"} | sides | shared | per_token
        # At least two rounds, so that each side goes first once.
        assert (row["streams"], row["samples"]) == (int(streams), 2 * int(streams))
        # Both sides contain the same prefills: one, and with two streams another one that half of them wait for.
        for side in ("engine", "stack"):
            prefills = (int(streams) + 1) / 2
            assert 0.9 * prefills * prefill_ms < row[f"{side}_p50_ms"] < prefills * prefill_ms + 1000
            assert row[f"{side}_p50_ms"] <= row[f"{side}_p99_ms"]
        assert row["stack_p50_ms"] < row["engine_p50_ms"] + 1000
        assert row["p50_overhead_ms"] <= row["p99_overhead_ms"]
        # The fake engine pauses at least 5 ms between two tokens.
        assert 5 < row["engine_per_token_ms"] < 50
        assert 5 < row["stack_per_token_ms"] < 50
        assert row["p50_overhead_share"] == pytest.approx(row["p50_overhead_ms"] / row["engine_p50_ms"])
    # Prompts are prefilled one after another, so one of two streams waits for the other.
    assert rows["2"]["engine_p99_ms"] > 1.4 * rows["1"]["engine_p50_ms"]
    assert {figure: result[figure] for figure in shared} == {figure: rows["1"][figure] for figure in shared}
