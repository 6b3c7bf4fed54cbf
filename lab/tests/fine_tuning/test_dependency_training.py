"""Fine-tuning of tiny models to dependency attention."""

import msgspec
import pytest
import torch
from lessons_by_hand import RIGHT, brute_force_mask, brute_force_positions, exercise
from tiny_models import continuation, gemma4, gpt_oss, llama, make_config_folder, make_tiny_model, mistral
from transformers import AutoModelForCausalLM, GPT2Config, MambaConfig

from generator.prompts.tokenizer import ModelTokenizer
from protocol.dependency import TreePositions
from protocol.errors import ConfigError
from ragtree_lab.fine_tuning import training
from ragtree_lab.fine_tuning.exercise import Source
from ragtree_lab.fine_tuning.inputs import in_full, in_trees
from ragtree_lab.fine_tuning.record import RECORD, LearnedAnswers, Recipe, TuningRecord
from ragtree_lab.fine_tuning.training import DependencyTraining
from ragtree_lab.fine_tuning.tuned_model import TunedModel

TRAINING = [exercise(seed) for seed in range(4)]
HELD_OUT = [exercise(seed) for seed in range(4, 6)]
SOURCE = "made by hand"
QUICK = Recipe(learning_rate=5e-3, batch=4, epochs=8)


@pytest.fixture(autouse=True)
def short_answers(monkeypatch):
    """A random model never ends an answer."""
    monkeypatch.setattr(training, "_ANSWER_TOKENS", 4)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads that wait for each other on a busy machine take ten times as long as one alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", llama())


def tuned(folder):
    return TunedModel(folder, torch.device("cpu"))


def length(answer, right) -> float:
    """A score that tells what was written: the number of its tokens."""
    assert right == RIGHT
    return len(answer)


def trained(model, recipe, folder, learned=TRAINING, held_out=HELD_OUT) -> TuningRecord:
    loop = DependencyTraining.of(model, recipe, folder, length, lambda *_: None)
    return loop.run({SOURCE: Source(learned, held_out)})


@pytest.mark.parametrize("positions", TreePositions)
def test_the_loss_is_that_of_transformers_with_the_mask_of_brute_force(model, positions):
    one = exercise(1, positions, questions=1)
    (asked,) = one.asked
    prompt = [*one.in_trees, *asked.question]
    mask, at = brute_force_mask(one.trees, len(prompt)), brute_force_positions(one.trees, len(prompt))
    likely = continuation(model, prompt, 3, mask, at)
    predicted = tuned(model).predicted(in_trees(one._replace(asked=(asked._replace(answer=likely.token_ids),))))
    assert predicted.losses.tolist() == pytest.approx([-each for each in likely.logprobs], abs=1e-4)
    assert predicted.hits.all()


def test_several_questions_have_the_losses_that_each_has_alone(model):
    one = exercise(1, TreePositions.DEPTH, questions=3)
    loaded = tuned(model)
    for way in (in_trees, in_full):
        alone = [loaded.predicted(way(one._replace(asked=(asked,)))).losses for asked in one.asked]
        assert torch.allclose(loaded.predicted(way(one)).losses, torch.cat(alone), atol=1e-4)


@pytest.mark.parametrize("positions", TreePositions)
def test_what_the_model_writes_is_what_transformers_writes_with_the_mask_of_brute_force(model, positions):
    one = exercise(1, positions, questions=3)
    expected, asked = [], []
    for number, question in enumerate(one.asked):
        prompt = [*one.in_trees, *question.question]
        mask, at = brute_force_mask(one.trees, len(prompt)), brute_force_positions(one.trees, len(prompt))
        likely = continuation(model, prompt, 6, mask, at).token_ids
        # The second answer ends early.
        end = likely[-1] if number == 1 else 999
        expected.append(likely[: likely.index(end)] if number == 1 else likely)
        asked.append(question._replace(answer=(7, end)))
    with torch.inference_mode():
        written = list(tuned(model).answers(in_trees(one._replace(asked=())), asked, 6))
    assert written == expected


def test_sources_are_trained_on_together_and_scored_apart(model, tmp_path):
    sources = {"one": Source(TRAINING[:1], HELD_OUT[:1]), "other": Source(TRAINING[1:], HELD_OUT[1:], left_out=7)}
    loop = DependencyTraining.of(model, Recipe(batch=8), tmp_path / "out", length, lambda *_: None)
    record = loop.run(sources)
    assert (record.questions, record.held_out, record.steps) == (8, 4, 1)
    counts = {name: (own.questions, own.held_out, own.left_out) for name, own in record.sources.items()}
    assert counts == {"one": (2, 2, 0), "other": (6, 2, 7)}
    alone = trained(model, Recipe(learning_rate=0.0), tmp_path / "alone", held_out=HELD_OUT[1:]).sources[SOURCE]
    assert record.sources["other"].before == alone.before
    assert 0 < alone.before.dependency.f1 <= 4


def test_the_loss_under_trees_falls_and_the_model_that_is_written_has_learned(model, tmp_path):
    steps: set[str] = set()
    folder = tmp_path / "new" / "trained"
    loop = DependencyTraining(tuned(model), QUICK, folder, length, lambda step, done, total: steps.add(step))
    # Held out are the questions that are trained on: random tokens cannot be learned otherwise.
    record = loop.run({SOURCE: Source(TRAINING, TRAINING)})
    own = record.sources[SOURCE]
    assert record.steps == len(record.losses) == 16
    assert (record.questions, record.held_out, record.trained) == (8, 8, "full")
    assert record.losses[-1] < 0.3 * record.losses[0]
    assert own.after.dependency.loss < 0.3 * own.before.dependency.loss
    assert own.after.dependency.exact > own.before.dependency.exact
    assert steps == {"asking before", "training", "asking after"}

    assert [path.name for path in folder.parent.iterdir()] == ["trained"]
    assert msgspec.json.decode((folder / RECORD).read_bytes(), type=TuningRecord) == record
    assert ModelTokenizer(folder).encode("Facts") == ModelTokenizer(model).encode("Facts")
    assert ModelTokenizer(folder).chat_template.end == "<|end|>"
    again = tuned(folder)
    losses = torch.cat([again.predicted(in_trees(one)).losses for one in TRAINING])
    assert float(losses.detach().mean()) == pytest.approx(own.after.dependency.loss, abs=1e-4)


def test_a_model_can_learn_what_it_writes_itself_with_every_path_in_full(model, tmp_path):
    loaded = tuned(model)
    own, ends = [], []
    for one in TRAINING:
        with torch.inference_mode():
            likely = list(loaded.answers(in_full(one._replace(asked=())), one.asked, 4))
        # The first answer of each ends behind its second token, and the others are cut.
        first, *others = [asked._replace(answer=answer) for asked, answer in zip(one.asked, likely, strict=True)]
        end = first.answer[2]
        own.append(one._replace(asked=(first._replace(answer=first.answer[: first.answer.index(end) + 1]), *others)))
        given, *rest = one.asked
        ends.append(one._replace(asked=(given._replace(answer=(*given.answer[:-1], end)), *rest)))
    learned = msgspec.structs.replace(QUICK, answers=LearnedAnswers.OWN)
    found = trained(model, learned, tmp_path / "own", ends).losses
    assert found == trained(model, QUICK, tmp_path / "given", own).losses
    assert found != trained(model, QUICK, tmp_path / "right", ends).losses


def test_self_attention_is_scored_with_every_path_in_full(model, tmp_path):
    record = trained(model, Recipe(learning_rate=0.0), tmp_path / "same").sources[SOURCE]
    loaded = tuned(model)
    for own, way in ((record.before.dependency, in_trees), (record.before.self_attention, in_full)):
        losses = torch.cat([loaded.predicted(way(one)).losses for one in HELD_OUT])
        assert own.loss == pytest.approx(float(losses.detach().mean()), abs=1e-4)
    assert record.after == record.before


def test_the_same_seed_trains_the_same_and_a_batch_is_one_step_however_it_is_cut(model, tmp_path):
    recipe = Recipe(learning_rate=1e-3, batch=2, epochs=2)
    first, second = (trained(model, recipe, tmp_path / name).losses for name in "ab")
    assert first == second
    other = trained(model, msgspec.structs.replace(recipe, seed=1), tmp_path / "c").losses
    assert other != first
    # All questions in one batch: the order is nothing but the order of a sum.
    whole = msgspec.structs.replace(recipe, batch=8)
    one, two = (
        trained(model, msgspec.structs.replace(whole, seed=seed), tmp_path / f"d{seed}").losses for seed in range(2)
    )
    assert one == pytest.approx(two, abs=1e-4)


def test_weights_are_written_in_their_own_type_and_scored_as_they_are_written(tmp_path):
    source = make_tiny_model(tmp_path / "half", llama())
    AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).save_pretrained(source)
    record = trained(source, msgspec.structs.replace(QUICK, epochs=2), tmp_path / "trained")
    written = AutoModelForCausalLM.from_pretrained(tmp_path / "trained", dtype="auto")
    assert written.dtype == torch.bfloat16
    again = trained(tmp_path / "trained", Recipe(learning_rate=0.0), tmp_path / "again")
    assert again.sources[SOURCE].before == record.sources[SOURCE].after


def test_checkpoints_are_whole_models(model, tmp_path):
    recipe = Recipe(learning_rate=1e-3, batch=2, checkpoint_steps=2)
    record = trained(model, recipe, tmp_path / "out")
    assert record.steps == 4
    # The last step's is the result.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out-step-2"]
    early = msgspec.json.decode((tmp_path / "out-step-2" / RECORD).read_bytes(), type=TuningRecord)
    assert (early.steps, early.sources[SOURCE].after, early.losses) == (2, None, record.losses[:2])
    tuned(tmp_path / "out-step-2")
    # A checkpoint changes nothing of what follows.
    without = trained(model, msgspec.structs.replace(recipe, checkpoint_steps=None), tmp_path / "without")
    assert without.losses == record.losses


class TestBadInput:
    def test_a_folder_that_exists_is_not_overwritten(self, model, tmp_path):
        with pytest.raises(ConfigError, match="exists already"):
            trained(model, QUICK, model)
        (tmp_path / "out-step-7").mkdir()
        with pytest.raises(ConfigError, match="out-step-7 exists already"):
            trained(model, QUICK, tmp_path / "out")

    def test_a_folder_that_cannot_be_made_is_refused_before_the_training(self, model, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(ConfigError, match="cannot be made"):
            trained(model, QUICK, tmp_path / "file" / "out")

    def test_no_questions_are_refused(self, model, tmp_path):
        with pytest.raises(ConfigError, match="no question to train on"):
            trained(model, QUICK, tmp_path / "out", learned=[])
        with pytest.raises(ConfigError, match="no question to hold out"):
            trained(model, QUICK, tmp_path / "out", held_out=[])

    def test_a_learning_rate_that_is_too_high_is_named_and_leaves_nothing(self, model, tmp_path):
        with pytest.raises(ConfigError, match="choose a lower learning rate"):
            trained(model, msgspec.structs.replace(QUICK, learning_rate=1e30), tmp_path / "out")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("config", "why"),
        [
            (mistral(), "sliding window"),
            (gemma4(), "do not attend to all tokens"),
            (gpt_oss(), "cannot be loaded"),
            (GPT2Config(vocab_size=300, n_embd=32, n_layer=1, n_head=2), "not rotated"),
            (MambaConfig(vocab_size=300, hidden_size=32, num_hidden_layers=1, state_size=4), "not rotated|cannot be"),
        ],
        ids=["sliding window", "some sliding windows", "attention sinks", "learned positions", "no attention"],
    )
    def test_a_model_that_cannot_have_trees_is_refused(self, tmp_path, config, why):
        with pytest.raises(ConfigError, match=why):
            tuned(make_tiny_model(tmp_path / "model", config))

    def test_a_model_whose_attention_ignores_the_mask_is_refused(self, model, monkeypatch):
        from transformers.models.llama.modeling_llama import LlamaModel

        forward = LlamaModel.forward

        def unmasked(self, input_ids, attention_mask, **others):
            return forward(self, input_ids, attention_mask=None, **others)

        monkeypatch.setattr(LlamaModel, "forward", unmasked)
        with pytest.raises(ConfigError, match="does not follow a mask of trees"):
            tuned(model)

    def test_a_folder_without_weights_or_with_quantised_ones_is_refused(self, model, tmp_path):
        with pytest.raises(ConfigError, match="cannot be loaded"):
            tuned(make_config_folder(tmp_path / "empty", llama()))
        config = llama()
        config.quantization_config = {"quant_method": "gptq", "bits": 4}
        with pytest.raises(ConfigError, match="quantised"):
            tuned(make_config_folder(tmp_path / "quantised", config))
