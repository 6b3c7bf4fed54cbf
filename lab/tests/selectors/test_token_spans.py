"""Characters of tokens, and scores that pass by them from one tokenizer's tokens to another's."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from protocol.errors import ConfigError
from ragtree_lab.selectors.auxiliary.token_spans import Span, TokenSpans, highest_by_characters

TEXT = "Grüße from Oslo"


@pytest.fixture
def bytewise(tmp_path) -> TokenSpans:
    """A tokenizer with a token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return TokenSpans(tmp_path)


def test_tokens_and_their_text_agree(bytewise):
    spelled = bytewise.of_text(TEXT)
    assert len(spelled.token_ids) == len(TEXT.encode())
    assert "".join(TEXT[span.start : span.end] for span in spelled.spans[-4:]) == "Oslo"
    assert bytewise.of_tokens(spelled.token_ids) == spelled


def test_tokens_that_are_not_the_text_s_own_are_spread_over_it(bytewise):
    half = bytewise.of_text("ü").token_ids[:1]
    spelled = bytewise.of_tokens([*bytewise.of_text("ab").token_ids, *half])
    assert len(spelled.spans) == 3
    assert (spelled.spans[0].start, spelled.spans[-1].end) == (0, len(spelled.text))


def test_a_token_gets_the_highest_score_of_those_that_share_its_characters():
    words = [Span(0, 5), Span(5, 10), Span(10, 15)]
    letters = [Span(number, number + 1) for number in range(15)]
    scores = torch.tensor([0.1, 0.7, 0.2])
    assert highest_by_characters(scores, words, letters).tolist() == pytest.approx([0.1] * 5 + [0.7] * 5 + [0.2] * 5)
    odd = [Span(0, 4), Span(4, 11), Span(11, 15)]
    assert highest_by_characters(scores, words, odd).tolist() == pytest.approx([0.1, 0.7, 0.2])


def test_a_token_without_characters_gets_nothing():
    scored = highest_by_characters(torch.tensor([0.5]), [Span(0, 3)], [Span(3, 3), Span(0, 1), Span(3, 4)])
    assert scored.tolist() == [0.0, 0.5, 0.0]


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        TokenSpans(tmp_path)
