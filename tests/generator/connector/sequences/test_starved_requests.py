"""Requests that need blocks which held documents take, and requests that a reset preempts."""

import threading
from contextlib import suppress

import pytest

pytest.importorskip("vllm")

from plan_messages import plan_message
from toy_documents import NAMESPACE, Documents, ask
from toy_engine import ToyEngine, answer_to

from protocol.tiers import Tier

BLOCKS = 41
HOST_GIB = 40 * 32 / (1 << 30)


@pytest.fixture(params=[False, True], ids=["", "asynchronous steps"])
def engine(request, tmp_path):
    (tmp_path / "kv").mkdir()
    engine = ToyEngine(tmp_path / "kv", BLOCKS, request.param, tmp_path / "model", host_gib=HOST_GIB, disk_gib=0)
    yield engine
    engine.close()


@pytest.mark.parametrize("lengths", [(13, 8), (17, 2), (16, 1, 1)])
def test_held_documents_give_way_wherever_their_blocks_begin(engine, lengths):
    """Also if a document lies in the last block of the one in front."""
    for number in range(5):
        path = Documents(f"held {number} ", lengths)
        ask(engine, path.message(f"holds {number}", None, Tier.GPU), [*path.tokens, 1])
    big = [at * 5 % 90 for at in range(120)]
    ask(engine, plan_message("big", NAMESPACE, ()), big, 2)


def test_a_request_whose_load_failed_gets_all_its_blocks_again(engine, monkeypatch):
    for number in range(2):
        path = Documents(f"held {number}", (20,))
        ask(engine, path.message(f"holds {number}", None, Tier.GPU), [*path.tokens, 1])
    loads, going_on = engine.worker_side._loads, threading.Event()
    fill = loads._fill

    def late(*piece):
        assert going_on.wait(10)
        fill(*piece)

    monkeypatch.setattr(loads, "_fill", late)
    missing = Documents("missing", (80,))
    prompt = [*missing.tokens, *[1] * 28]
    engine.send(missing.message("big", Tier.HOST, None), prompt, 1)
    for _ in range(10):
        engine.step()
    # It takes blocks and keeps them, while the load has those of its document.
    small = Documents("small", (20,))
    ask(engine, small.message("small", None, Tier.GPU), [*small.tokens, 1])
    for _ in range(5):
        engine.step()
    going_on.set()
    engine.run_until(lambda: "big" in engine.finished, 5000)
    assert engine.answers["big"] == answer_to(prompt, 1)


def test_documents_of_a_request_that_a_reset_preempts_are_saved_right(engine):
    path = Documents("saved", (13, 14, 21))
    engine.send(path.message("first", None, Tier.HOST), prompt := [*path.tokens, 1, 2, 3], 3)
    for _ in range(2):
        engine.step()
    # With asynchronous steps, vLLM preempts all requests, and then says that it could not reset its cache.
    with suppress(RuntimeError):
        engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    engine.run_until(lambda: engine.idle)
    assert engine.answers["first"] == answer_to(prompt, 3)
    engine.scheduler.reset_prefix_cache()
    ask(engine, path.message("second", Tier.HOST, None), [*path.tokens, 5, 6], 3)
