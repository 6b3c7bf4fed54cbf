"""The output of ``ragtree bench replay``, also of a run that is ended."""

import json
import signal

import pytest
from typer.testing import CliRunner

from protocol.errors import ConfigError
from protocol.tiers import Tier
from ragtree_lab.measuring.baselines import Steps
from ragtree_lab.measuring.phases import Measured
from ragtree_lab.replay.results import ReplayResult, SystemResult, Trial
from services.cli.app import app

PNG = b"\x89PNG\r\n"


def measured(rate: float | None, ttft_ms: float, host: int) -> Measured:
    tokens = {"gpu": 0, "host": host, "disk": 0, "computed": 1000 - host}
    return Measured(rate, 20, 20, 1.0, rate or 0.5, ttft_ms, ttft_ms, 2 * ttft_ms, 2000.0, host / 1000, tokens)


def system(ttft_ms: float, host: int, sustained: float | None) -> SystemResult:
    unloaded = measured(None, ttft_ms, host)
    loaded = [measured(rate, 2 * ttft_ms, host) for rate in (1.0, 1.14)]
    return SystemResult(Steps.DEFAULT, unloaded, measured(None, 5 * ttft_ms, host), loaded, sustained)


RESULT = ReplayResult(
    complete=False,
    document_tokens=9000,
    memory_tokens={Tier.GPU: 100, Tier.HOST: 200, Tier.DISK: 300},
    cache_tokens=200,
    ram_tokens=400,
    prompt_tokens=50.0,
    answer_tokens=8,
    warm_up_prompts=9,
    new_path_share=0.6,
    token_hit_rate={"gpu": 0.0, "host": 0.4, "disk": 0.0},
    systems={"vllm": system(800, 0, 1.0), "ragtree": system(400, 400, None)},
    trials=[Trial("vllm", Steps.DEFAULT, measured(None, 800, 0), measured(None, 4000, 0))],
    ttft_ratio_unloaded={"vllm": 2.0},
    ttft_ratio={"vllm": 2.5},
    ttft_ratio_by_rate={"vllm": {"1": 2.5}},
    throughput_ratio={},
)


@pytest.fixture
def ended(monkeypatch):
    """A run that is ended by Ctrl-C, with or without results."""

    class EndedBenchmark:
        has_results = True

        def __init__(self, *_):
            pass

        async def run(self):
            signal.raise_signal(signal.SIGINT)

        def result(self, *, complete):
            assert not complete
            return RESULT

    monkeypatch.setattr("ragtree_lab.replay.benchmark.ReplayBenchmark", EndedBenchmark)
    monkeypatch.setattr("ragtree_lab.commands.common.prompts.retrieved_prompts", lambda *_, **__: None)
    monkeypatch.setattr("ragtree_lab.commands.common.prompts.prompt_stream", lambda *_: None)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield EndedBenchmark
    signal.signal(signal.SIGINT, before)


def replay(*options: str):
    return CliRunner().invoke(app, ["bench", "replay", *options])


def test_ctrl_c_prints_and_draws_what_was_measured(ended, tmp_path):
    ran = replay("--json", "--plot", str(tmp_path / "replay.png"))
    assert ran.exit_code == 128 + signal.SIGINT
    printed = json.loads(ran.stdout)
    assert (printed["complete"], printed["ttft_ratio_unloaded"]) == (False, {"vllm": 2.0})
    assert (tmp_path / "replay.png").read_bytes().startswith(PNG)


def test_ctrl_c_prints_a_table_that_says_so(ended):
    ran = replay()
    assert "against vllm: mean TTFT 2.00 x lower unloaded, 2.50 x at the highest rate" in ran.stdout
    assert "40% from host" in ran.stdout
    assert "ended before everything was measured" in ran.stdout


def test_ctrl_c_before_any_result_prints_nothing(ended):
    ended.has_results = False
    ran = replay("--json")
    assert (ran.exit_code, ran.stdout) == (128 + signal.SIGINT, "")


def test_a_missing_set_and_an_unknown_baseline_are_refused_with_what_to_change(tmp_path):
    refused = replay("--data", str(tmp_path)).exception
    assert isinstance(refused, ConfigError)
    assert "--data" in str(refused)
    refused = replay("--against", "sglang").exception
    assert isinstance(refused, ConfigError)
    assert "the baselines are vllm, vllm-prefix" in str(refused)
