"""A cross-encoder of two small BERT layers with random weights, whose words are those of its vocabulary."""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WORDS = [f"w{number}" for number in range(60)]


def make_cross_encoder(folder: Path, labels: int = 1) -> Path:
    """Save the model and its tokenizer to a folder. Random weights still tell texts apart."""
    words = {word: number for number, word in enumerate([*_SPECIAL, *WORDS])}
    backend = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = Whitespace()
    ends = [("[CLS]", words["[CLS]"]), ("[SEP]", words["[SEP]"])]
    backend.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=64,
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        num_labels=labels,
        # Larger than usual, so that scores differ clearly.
        initializer_range=0.5,
    )
    BertForSequenceClassification(config).eval().save_pretrained(folder)
    return folder
