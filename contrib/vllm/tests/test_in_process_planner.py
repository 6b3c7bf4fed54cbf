"""Which requests of a plain vLLM the in-process planner plans: those whose KV depends on their tokens alone."""

from collections.abc import Sequence

import pytest
import torch
from small_pool import small_pool
from vllm import SamplingParams
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request
from vllm_configs import configuring, make_config_folders

from generator.connector.step_jobs import JobResults, StepResults
from protocol.kv import KvMemory, LostCopy, ResidencyReport
from protocol.plans import PrefillPlan
from protocol.prompts import Prompt
from ragtree_vllm.in_process_planner import PlanningConnector

TOKENS = list(range(100, 164))


class RecordingPlanner:
    """Notes the prompts that it is asked to plan."""

    def __init__(self) -> None:
        self.prompts: dict[str, Prompt] = {}

    def admit(self, query_id: str, namespace: str, prompt: Prompt) -> PrefillPlan:
        self.prompts[query_id] = prompt
        return PrefillPlan(query_id, "engine", namespace, prompt)

    def prefilled(self, query_id: str, lost: Sequence[LostCopy]) -> None: ...

    def complete(self, query_id: str, kept: bool) -> None: ...


class RecordingConnector(PlanningConnector):
    """A connector whose planner only notes."""

    def make_planner(self, memory: KvMemory, reports: Sequence[ResidencyReport]) -> RecordingPlanner:
        self.planner = RecordingPlanner()
        return self.planner


@pytest.fixture
def connector(tmp_path) -> RecordingConnector:
    """The connector on vLLM's scheduler side, after the worker side has reported its tiers."""
    with configuring(make_config_folders(tmp_path), tmp_path) as configured:
        config = configured()
    spec = FullAttentionSpec(block_size=32, num_kv_heads=1, head_size=32, dtype=torch.float32)
    cache = KVCacheConfig(17, [], [KVCacheGroupSpec(["layer"], spec)])
    connector = RecordingConnector(config, KVConnectorRole.SCHEDULER, cache)
    connector.bind_gpu_block_pool(small_pool())
    asked = connector.build_connector_meta(SchedulerOutput.make_empty()).inquiries
    memory = KvMemory("fingerprint", "boot", 32, 1024, 17, 0, 0, 1e9, 1e9)
    results = StepResults({0: JobResults(held={name: {} for name in asked}, memory=memory)})
    connector.update_connector_output(KVConnectorOutput(kv_connector_worker_meta=results))
    connector.get_kv_connector_stats()
    return connector


def request(segments: object = (20, 30), tokens: list[int] = TOKENS, **given: object) -> Request:
    """A request of marked documents, two by default, and a question."""
    params = SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": {"ragtree": {"segments": segments}}})
    return Request("request", tokens, params, None, **given)


def test_marked_segments_are_planned(connector):
    connector.on_new_request(request())
    prompt = connector.planner.prompts["request"]
    assert [list(segment.token_ids) for segment in prompt.segments] == [TOKENS[:20], TOKENS[20:50], TOKENS[50:]]


@pytest.mark.parametrize("segments", [[20, 0], [20, "30"], [20, 3000], [1] * 257])
def test_invalid_segments_are_not_planned(connector, segments):
    connector.on_new_request(request(segments, [1] * 300))
    assert connector.planner.prompts == {}


def test_a_prompt_may_have_many_segments(connector):
    connector.on_new_request(request([1] * 256, [1] * 300))
    assert len(connector.planner.prompts["request"].documents) == 256


@pytest.mark.parametrize(
    "given",
    [
        {"lora_request": LoRARequest("adapter", 1, "/adapter")},
        {"mm_features": [MultiModalFeatureSpec(None, "image", "an image", PlaceholderRange(offset=20, length=4))]},
        {
            "prompt_embeds": torch.zeros(len(TOKENS), 8),
            "prompt_is_token_ids": [position >= 20 for position in range(64)],
        },
    ],
    ids=["an adapter", "an image", "embeddings"],
)
def test_kv_that_depends_on_more_than_tokens_is_not_planned(connector, given):
    connector.on_new_request(request(**given))
    assert connector.planner.prompts == {}
