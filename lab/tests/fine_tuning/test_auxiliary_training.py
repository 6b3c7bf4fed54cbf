"""Training of an auxiliary model, with tiny models."""

import pytest
import torch

pytest.importorskip("vllm")

from tiny_models import llama, make_tiny_model
from transformers import AutoModelForCausalLM

from protocol.errors import ConfigError
from ragtree_lab.fine_tuning.auxiliary_training import AuxiliaryTraining, Reading
from ragtree_lab.selectors.auxiliary.auxiliary_model import AuxiliaryModel

READINGS = [
    Reading([f"Text {number} begins.", f"Text {number} ends."], [f"Which text is {number}?", "Where does it end?"])
    for number in range(14)
]


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
    steps: list[str] = []
    trained = AuxiliaryTraining(primary, auxiliary, 3e-3, lambda step, done, total: steps.append(step))
    result = trained.run(READINGS[2:], READINGS[:2], tmp_path / "trained")
    assert result.after.kl < 0.9 * result.before.kl
    assert (result.before.questions, result.steps) == (4, 12)
    assert set(steps) == {"asking before", "training", "asking after"}
    document = AuxiliaryModel(tmp_path / "trained", torch.float32).read("a text")
    assert document.tokens == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["auxiliary", "primary", "trained"]


def test_an_existing_folder_is_not_overwritten(tmp_path, primary, auxiliary):
    with pytest.raises(ConfigError, match="exists already"):
        AuxiliaryTraining(primary, auxiliary, 1e-3, lambda *_: None).run(READINGS, READINGS, auxiliary)


def test_a_folder_without_a_model_is_refused(tmp_path, primary):
    with pytest.raises(ConfigError):
        AuxiliaryTraining(primary, tmp_path, 1e-3, lambda *_: None)
