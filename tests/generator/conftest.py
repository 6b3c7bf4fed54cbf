"""One real engine for all tests of this folder, because every start takes 10 to 25 s, and what belongs to it."""

import gc
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import prometheus_client
import pytest
import pytest_asyncio
from engine_settings import small_engine
from platformdirs import user_cache_path

from generator.engines.vllm_engine import VllmEngine
from generator.models import ModelStore
from generator.prompts.layout import SegmentLayout
from generator.prompts.tokenizer import ModelTokenizer


@pytest.fixture(scope="session")
def model() -> Path:
    """The shipped model's folder, in the user's own cache, so that a machine converts the model only once."""
    return ModelStore(user_cache_path("ragtree")).resolve("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """The folder of a tiny model."""
    from tiny_models import llama, make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("tiny-model"), llama())


@pytest.fixture(scope="session")
def kv_folder(tmp_path_factory) -> Path:
    """The folder for the shared engine's KV."""
    return tmp_path_factory.mktemp("shared-engine")


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def engine(model, kv_folder) -> AsyncIterator[VllmEngine]:
    """A started vLLM with the connector, shared by all tests. Tests use namespaces of their own, and clean up."""
    engine = VllmEngine(small_engine(kv_folder), model)
    await engine.start()
    yield engine
    await engine.close()


@pytest.fixture(scope="session")
def layout(model) -> SegmentLayout:
    """The prompt layout for the shared engine."""
    return SegmentLayout(ModelTokenizer(model), "Answer.", small_engine(Path()).max_model_len)


@pytest.fixture
def preemptions() -> Callable[[], float]:
    """Counts the requests that vLLM has preempted so far in all running engines of this process."""

    def count() -> float:
        # Not from the registry: vLLM takes an engine's counters out of it when the next engine starts.
        # By type: isinstance asks each object for its class, and some proxy never answers under Python 3.13.
        counters = [found for found in gc.get_objects() if issubclass(type(found), prometheus_client.Counter)]
        return sum(
            sample.value
            for counter in counters
            for metric in counter.collect()
            for sample in metric.samples
            if sample.name == "vllm:num_preemptions_total"
        )

    return count
