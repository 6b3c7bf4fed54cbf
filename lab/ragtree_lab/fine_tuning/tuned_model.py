"""A model that is trained under masks of trees."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from protocol.dependency import Branch, DependencyTrees
from protocol.errors import ConfigError
from ragtree_lab.fine_tuning.exercise import Answered, Exercise
from ragtree_lab.fine_tuning.inputs import Inputs, in_trees
from ragtree_lab.fine_tuning.record import RECORD, TuningRecord

_COPIED = {".json", ".jinja", ".txt", ".model"}
"""Suffixes of the files that a tokenizer has in a model's folder."""

_PROBE = Exercise((), (1, 2, 3, 4, 5), DependencyTrees(1, 1, (Branch(2, -1), Branch(2, -1))), (Answered((6, 7), (8,)),))
"""Two trees of two tokens, behind one token."""


class Predicted(NamedTuple):
    """Of each token that is asked for: its ``losses``, in nats, and whether it is the most likely one (``hits``)."""

    losses: torch.Tensor
    hits: torch.Tensor


class TunedModel:
    """A language model of a folder, with all weights in float32, because small steps are lost in half precision.

    Raises ConfigError if the folder has no model that can be trained under masks of trees.
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.folder = folder
        self._device = device
        self._model, self._dtype = _loaded(folder)
        self._model.to(device)
        why = _unsupported(self._model) or self._ignored_mask()
        if why:
            raise _refused(folder, why)

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """All weights."""
        return list(self._model.parameters())

    def training(self, on: bool) -> None:
        """Whether the model drops values at random, where its configuration says so."""
        self._model.train(on)

    def predicted(self, inputs: Inputs) -> Predicted:
        """How well the answers of an exercise are predicted."""
        logits = self._logits(inputs, inputs.places)
        wanted = inputs.wanted.to(self._device)
        losses = torch.nn.functional.cross_entropy(logits, wanted, reduction="none")
        return Predicted(losses, logits.argmax(-1) == wanted)

    def answers(self, front: Inputs, asked: Sequence[Answered], most: int) -> Iterator[tuple[int, ...]]:
        """What greedy decoding writes behind a front: for each question up to ``most`` tokens, without the end."""
        cache = self._model(
            input_ids=front.token_ids.to(self._device),
            attention_mask=front.mask.to(self._device),
            position_ids=front.positions.to(self._device),
            use_cache=True,
            logits_to_keep=1,
        ).past_key_values
        count = cache.get_seq_length()
        for one in asked:
            yield tuple(islice(self._written(cache, one.question, one.answer[-1]), most))
            # Leaves the front: it removes so many tokens.
            cache.crop(count - cache.get_seq_length())

    def round(self) -> None:
        """Round all weights to the type in which they are written."""
        with torch.no_grad():
            # Not the whole model: what it computes itself, as frequencies of rotation, has no weights' type.
            for weights in self.parameters:
                weights.copy_(weights.to(self._dtype))

    def save(self, folder: Path, record: TuningRecord) -> None:
        """Write the model into a new folder, which appears whole or not at all. Raises OSError."""
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch) / folder.name
            # A copy, so that training can go on with the weights that are not rounded.
            deepcopy(self._model).to(self._dtype).save_pretrained(made)
            for file in self.folder.iterdir():
                own = made / file.name
                if file.suffix in _COPIED and not file.name.endswith(".index.json") and not own.exists():
                    shutil.copy(file, own)
            (made / RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(record)))
            made.rename(folder)

    def _written(self, cache: Any, question: Sequence[int], end: int) -> Iterator[int]:  # noqa: ANN401  # transformers is untyped here
        """The most likely tokens behind a question, one after another, up to the one that ends an answer."""
        read = list(question)
        while True:
            first = cache.get_seq_length()
            output = self._model(
                input_ids=torch.tensor([read], device=self._device),
                position_ids=torch.arange(first, first + len(read), device=self._device)[None],
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            token = int(output.logits[0, -1].argmax())
            if token == end:
                return
            yield token
            read = [token]

    def _logits(self, inputs: Inputs, places: torch.Tensor) -> torch.Tensor:
        """The logits at places, shape [places, vocabulary]."""
        output = self._model(
            input_ids=inputs.token_ids.to(self._device),
            attention_mask=inputs.mask.to(self._device),
            position_ids=inputs.positions.to(self._device),
            use_cache=False,
            # Those of all tokens would take gigabytes.
            logits_to_keep=places.to(self._device),
        )
        logits: torch.Tensor = output.logits[0].float()
        return logits

    def _ignored_mask(self) -> str:
        """Why the model does not follow a mask of trees; empty if it does.

        A token of one tree changes, and with it may change the end of the prompt, but not what another tree predicts.
        """
        first = in_trees(_PROBE)
        other = first._replace(token_ids=first.token_ids.clone())
        other.token_ids[0, 1] = 9
        places = torch.tensor([4, 6])
        self._model.eval()
        try:
            with torch.inference_mode():
                seen, changed = self._logits(first, places), self._logits(other, places)
        except (TypeError, ValueError, RuntimeError, IndexError) as error:
            return f"it does not take a mask of trees: {error}"
        if seen.shape[0] != len(places):
            return "it computes no logits of chosen tokens"
        unlike = (seen - changed).abs().amax(-1)
        if unlike[0] > 1e-3 or unlike[1] == 0:
            return "its attention does not follow a mask of trees"
        return ""


def _loaded(folder: Path) -> tuple[Any, torch.dtype]:
    """The model in float32, and the type of its weights in the folder."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    # Who trains shows the progress of all of it.
    disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)  # nosec B615  # a local folder
        if getattr(config, "quantization_config", None) is not None:
            raise _refused(folder, "its weights are quantised")
        # Of the kinds of attention that are for any mask, eager would keep each layer's weights for the gradient.
        model, loaded = AutoModelForCausalLM.from_pretrained(  # nosec B615  # a local folder
            folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError) as error:
        raise _refused(folder, f"it cannot be loaded: {error}") from error
    if loaded["missing_keys"]:
        # transformers would leave them random.
        raise _refused(folder, f"it lacks weights: {', '.join(sorted(loaded['missing_keys']))}")
    return model, config.dtype or torch.float32


def _unsupported(model: Any) -> str:  # noqa: ANN401  # transformers is untyped here
    """Why a model cannot have trees; empty if it can."""
    if getattr(model.base_model, "rotary_emb", None) is None:
        return "its keys are not rotated by their positions"
    kinds = getattr(model.config, "layer_types", None)
    if any(kind != "full_attention" for kind in kinds or ()):
        return "some of its layers do not attend to all tokens"
    if not kinds and getattr(model.config, "sliding_window", None):
        return "its layers attend to a sliding window"
    return ""


def _refused(folder: Path, why: str) -> ConfigError:
    return ConfigError(f"the model {folder} cannot be fine-tuned to dependency attention: {why}", "model")
