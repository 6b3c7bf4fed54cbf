"""The benchmark of composing on a real engine with a tiny model: each row has the answers of its own way."""

import pytest
from tiny_models import llama, make_tiny_model

from examine.composing.rows import FULL, Way
from examine.composing.tasks import Probe, Task, share_found
from generator.settings import GeneratorSettings, KvSettings
from ragtree_lab.compose.benchmark import SpeedBenchmark, SpeedProbe

pytestmark = [pytest.mark.vllm, pytest.mark.prove("lab/ragtree_lab/compose/", "examine/composing/")]

SHARE = 0.5
WAYS = (Way(FULL, 0.0), Way("none", 0.0), Way("random", SHARE), Way("epic", SHARE), Way("query", 1.0))
QUESTIONS = tuple(Probe(f"What is {name}?", "It is ", ("x",), share_found, 6) for name in ("this", "that"))
TASK = Task(tuple(f"{name} text. " * 8 for name in ("First", "Second", "Third")), "Other text. " * 8, QUESTIONS)


class Ended(Exception):
    """What ends the benchmark in the middle of a task."""


def end_early(rows):
    if rows[0].task == "ended":
        raise Ended
    return False


async def test_each_row_has_the_answers_of_its_way_also_of_a_task_that_was_ended(tmp_path):
    settings = GeneratorSettings(
        model=str(make_tiny_model(tmp_path / "model", llama())),
        max_model_len=1024,
        dtype="float32",
        system_prompt="",
        preamble="",
        kv=KvSettings(host_gib=0.1, host_dir=tmp_path),
        engine_args={"num_gpu_blocks_override": 400},
    )
    benchmark = SpeedBenchmark(settings, tmp_path, WAYS, lambda *_: None)
    with pytest.raises(Ended):
        await benchmark.measure({"texts": [TASK], "ended": [TASK] * 3}, SpeedProbe([TASK] * 2, 24), end_early)
    found = benchmark.result(complete=False).rows
    rows = {row.method: row for row in found if row.task == "texts"}
    assert [row.questions for row in found if row.task == "ended"] == [2] * len(WAYS)
    assert [row.questions for row in rows.values()] == [2] * len(WAYS)
    assert {name: row.actual_share for name, row in rows.items() if name in (FULL, "none", "query")} == {
        FULL: 1.0,
        "none": 0.0,
        "query": 1.0,
    }
    for name in ("random", "epic"):
        assert SHARE / 2 < rows[name].actual_share <= SHARE
    assert rows[FULL].kl < 1e-5 > rows["query"].kl
    others = {rows[name].kl for name in ("none", "random", "epic")}
    assert min(others) > 1e-4
    assert len(others) == 3
    assert [row.prefill_speedup is None for row in rows.values()] == [True, False, False, False, False]
