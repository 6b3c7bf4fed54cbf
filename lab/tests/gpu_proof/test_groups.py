"""The checks of each machine, and what an answer must be like."""

import msgspec
import pytest

from protocol.generation import PrefillResult
from ragtree_lab.gpu_proof.answers import Answer, compare
from ragtree_lab.gpu_proof.groups import groups, missing
from ragtree_lab.gpu_proof.machine import Machine

H200 = Machine(
    "NVIDIA H200", 143771 << 20, "9.0", "CUDA 13.0", 16, 64 << 30, "3.12.3", {"torch": "2.11", "vllm": "0.26"}
)
BARE = Machine("NVIDIA A10", 23 << 30, "8.6", "CUDA 12.9", 4, 1 << 30, "3.12.3", {"torch": "2.11"})
LEVELS = {1, 2, 3}
PREFILL = PrefillResult(10, 0, 0.0)


def test_a_gpu_runs_both_runners_and_backends_and_the_7b_shape():
    planned = groups(H200, False, LEVELS, "")
    engines = [group for group in planned if group.level == 2 and group.kind == "engine" and group.environment]
    assert {group.environment["VLLM_USE_V2_MODEL_RUNNER"] for group in engines} == {"0", "1"}
    assert {group.settings["engine_args"]["attention_backend"] for group in engines} == {"FLASH_ATTN", "FLASHINFER"}
    composing = [group for group in planned if group.level == 2 and group.kind == "composing"]
    assert {group.settings["shape"] for group in composing} == {"one layer", "small"}
    large = [group for group in planned if group.level == 3 and group.kind != "sharing" and group.name != "fixed costs"]
    assert {group.settings["shape"] for group in large} == {"7b"}
    # A CPU's engine beside it has no memory for more.
    assert {group.settings["shape"] for group in planned if group.kind == "sharing"} == {"small", "1b"}
    assert all(group.settings["block_tokens"] == 16 for group in engines)
    assert {"gemma3", "qwen3-next", "llama in fp8"} <= {group.settings.get("shape") for group in planned}


def test_names_are_unique_on_every_machine():
    for small in (True, False):
        names = [check.name for group in groups(H200, small, LEVELS, "") for check in group.checks]
        assert len(names) == len(set(names))


def test_a_smaller_gpu_runs_a_smaller_shape():
    assert {group.settings["shape"] for group in groups(BARE, False, {3}, "")} == {"1b", "small"}


TOO_OLD = {f"this vLLM lets no connector keep {kind}" for kind in ("states", "windows beside all tokens")}
NO_CPU_ENGINE = "--cpu-python names no interpreter with vLLM for a CPU"


def test_what_is_missing_is_named():
    reasons = {missing(group, H200) for group in groups(H200, False, LEVELS, "")}
    assert reasons == {"", "FlashInfer is not installed", NO_CPU_ENGINE, *TOO_OLD}
    assert {missing(group, BARE) for group in groups(BARE, False, {2, 3}, "")} == {"vLLM is not installed"}
    assert [missing(group, BARE) for group in groups(BARE, False, {1}, "")] == [""]
    newer = {"flashinfer-python": "0.6", "vllm": "0.33.0"}
    whole = msgspec.structs.replace(H200, versions={**H200.versions, **newer})
    assert {missing(group, whole) for group in groups(whole, False, LEVELS, "", "python3")} == {""}


@pytest.mark.parametrize("small", [True, False])
def test_the_quick_form_begins_with_the_fixed_costs(small):
    quick = groups(H200, small, LEVELS, "", quick=True)
    assert [group.kind for group in quick] == ["benchmarks", *(["engine"] if small else ["engine", "engine"])]
    assert quick[0].checks[0].call == "fixed_costs"
    answers = {check.arguments["tier"] for group in quick for check in group.checks if check.call == "answers"}
    assert answers == {"gpu", "host", "disk"}


def test_only_some_checks_are_chosen_by_name():
    (group,) = groups(H200, True, LEVELS, "engine: KV from disk")
    assert [check.name for check in group.checks] == ["engine: KV from disk"]


def answer(*tokens: int, off: float = 0.0) -> Answer:
    return Answer(tokens, tuple(-1.0 - token / 10 + off for token in tokens), PREFILL)


EQUAL = (answer(1, 2, 3), answer(1, 2, 3))
TIED = (answer(1, 2, 3), answer(1, 3, 9))
"""Another token that is as likely, and another continuation."""


def test_equal_answers_pass_within_rounding():
    pairs = [(answer(1, 2, 3), answer(1, 2, 3, off=0.01))] * 2
    assert compare(pairs, 0.15) == "2 of 2 equal, log probabilities within 0.01"


@pytest.mark.parametrize(
    "pairs",
    [
        # Equal tokens with other probabilities.
        [(answer(1, 2, 3), answer(1, 2, 3, off=0.5))],
        # Another token where the model was sure.
        [EQUAL] * 9 + [(answer(1, 2, 3), answer(1, 9, 3))],
        # The same in the middle of a long answer.
        [EQUAL] * 9 + [(answer(1, 2, 3), answer(1, 2, 9))],
        # Too many near ties.
        [EQUAL] * 4 + [TIED] * 5,
        # No answer.
        [EQUAL, (answer(), answer(1, 2, 3))],
    ],
)
def test_other_answers_fail(pairs):
    with pytest.raises(ValueError, match="wrong"):
        compare(pairs, 0.15)


def test_some_near_ties_pass():
    assert compare([EQUAL] * 5 + [TIED] * 4, 0.15).startswith("5 of 9 equal")
