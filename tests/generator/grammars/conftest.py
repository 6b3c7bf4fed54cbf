"""The vocabulary of the shipped model, without its engine."""

import pytest
import xgrammar
from transformers import AutoTokenizer

from generator.grammars.messages import Vocabulary


@pytest.fixture(scope="session")
def vocabulary(model) -> Vocabulary:
    tokenizer = AutoTokenizer.from_pretrained(model)
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(tokenizer))
    return Vocabulary(info.serialize_json(), any_whitespace=True, separators=None)
