"""Training of an auxiliary model, with tiny models."""

import pytest
import torch

pytest.importorskip("transformers")

from tiny_models import llama, make_tiny_model
from transformers import AutoModelForCausalLM

from benchmarks.auxiliary import AuxiliaryTraining
from benchmarks.compose.tasks import first, needle_tasks
from generator.composing.auxiliary.auxiliary_model import AuxiliaryModel
from protocol.errors import ConfigError

TEXTS = [f"Text {number} begins. It ends with {number}." for number in range(20)]


@pytest.fixture
def primary(tmp_path):
    return make_tiny_model(tmp_path / "primary", llama())


@pytest.fixture
def auxiliary(tmp_path, primary):
    """The same model with disturbed weights."""
    folder = make_tiny_model(tmp_path / "auxiliary", llama())
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.manual_seed(1)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.add_(0.1 * torch.randn_like(weights))
    model.save_pretrained(folder)
    return folder


def test_training_brings_the_attention_nearer_and_writes_a_model_that_can_be_used(tmp_path, primary, auxiliary):
    tasks = needle_tasks("multi-key", TEXTS, 2, 0)
    held_out = first(tasks, 4)
    training = [next(tasks) for _ in range(12)]
    steps: list[str] = []
    trained = AuxiliaryTraining(primary, auxiliary, 3e-3, lambda step, done, total: steps.append(step))
    result = trained.run(training, held_out, tmp_path / "trained")
    assert result.after.kl < 0.9 * result.before.kl
    assert (result.before.questions, result.steps) == (4, 12)
    assert set(steps) == {"asking before", "training", "asking after"}
    document = AuxiliaryModel(tmp_path / "trained", torch.float32).read("a text")
    assert document.tokens == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["auxiliary", "primary", "trained"]


def test_an_existing_folder_is_not_overwritten(tmp_path, primary, auxiliary):
    task = first(needle_tasks("multi-key", TEXTS, 2, 0), 1)
    with pytest.raises(ConfigError, match="exists already"):
        AuxiliaryTraining(primary, auxiliary, 1e-3, lambda *_: None).run(task, task, auxiliary)


def test_a_folder_without_a_model_is_refused(tmp_path, primary):
    with pytest.raises(ConfigError):
        AuxiliaryTraining(primary, tmp_path, 1e-3, lambda *_: None)
