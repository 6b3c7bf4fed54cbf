"""No text becomes a control token, whatever the kind of the tokenizer, its normalizer, and its added tokens."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_folders import make_model_folder
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram, WordLevel, WordPiece

from generator.prompts.layout import SegmentLayout
from generator.prompts.tokenizer import ModelTokenizer

QWEN3 = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|vision_start|>", "<|fim_prefix|>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)
OTHERS = (
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[SEP]",
    "<start_of_turn>",
    "<|eot_id|>",
    "<\uff5cUser\uff5c>",
    "\u00dcser:",
)
TOKENS = (*QWEN3, *OTHERS)
UNKNOWN = "[UNK]"


def _added() -> list[AddedToken]:
    """All tokens in turn with each flag, special or not."""
    flags: tuple[dict[str, bool], ...] = ({}, {"lstrip": True, "rstrip": True}, {"single_word": True})
    return [
        AddedToken(token, special=number % 2 == 0, normalized=number % 3 == 0, **flags[number % len(flags)])
        for number, token in enumerate(TOKENS)
    ]


def _letters(texts: Iterable[str]) -> list[str]:
    return sorted(set("".join(texts)) | {"\u2581", *map(chr, range(33, 127))})


def _chain(pieces: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """What pieces merge to, one after the other, and the merges."""
    wholes = ["".join(pieces[: number + 1]) for number in range(1, len(pieces))]
    return wholes, [(left, right) for left, right in zip([pieces[0], *wholes], pieces[1:], strict=False)]


def byte_level(*, ignore_merges: bool = False) -> Tokenizer:
    """The vocabulary has the tokens, and merges lead to each of them."""
    pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocabulary = dict.fromkeys(sorted(pre_tokenizers.ByteLevel.alphabet()))
    merges: dict[tuple[str, str], None] = {}
    for token in TOKENS:
        spelled = pre_tokenizer.pre_tokenize_str(token)[0][0]
        wholes, steps = _chain(list(spelled))
        vocabulary |= dict.fromkeys([*wholes, token])
        merges |= dict.fromkeys(steps)
    model = BPE({piece: number for number, piece in enumerate(vocabulary)}, list(merges), ignore_merges=ignore_merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    return tokenizer


def sentence_piece_merges() -> Tokenizer:
    """As byte_level, but of characters, with bytes for unknown ones."""
    vocabulary: dict[str, None] = {UNKNOWN: None} | dict.fromkeys(f"<0x{number:02X}>" for number in range(256))
    vocabulary |= dict.fromkeys(_letters(TOKENS))
    merges: dict[tuple[str, str], None] = {}
    for token in TOKENS:
        wholes, steps = _chain(list(token))
        vocabulary |= dict.fromkeys(wholes)
        merges |= dict.fromkeys(steps)
    numbers = {piece: number for number, piece in enumerate(vocabulary)}
    tokenizer = Tokenizer(BPE(numbers, list(merges), unk_token=UNKNOWN, byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    return tokenizer


def unigram() -> Tokenizer:
    """Its own symbols have the best score, as sentencepiece writes them."""
    pieces = [(UNKNOWN, 0.0), *((token, 0.0) for token in TOKENS), *((letter, -8.0) for letter in _letters(TOKENS))]
    tokenizer = Tokenizer(Unigram(list(dict(pieces).items()), unk_id=0))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def word_piece() -> Tokenizer:
    """It normalises case and accents, as BERT does, but does not cut words at punctuation."""
    pieces = [UNKNOWN, *TOKENS, *_letters(TOKENS), *(f"##{letter}" for letter in _letters(TOKENS))]
    tokenizer = Tokenizer(WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def word_level() -> Tokenizer:
    """Each token is a word."""
    pieces = [UNKNOWN, *TOKENS, "word"]
    tokenizer = Tokenizer(WordLevel({piece: number for number, piece in enumerate(pieces)}, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": byte_level,
    "byte-level, whole words first": lambda: byte_level(ignore_merges=True),
    "merges of characters": sentence_piece_merges,
    "unigram": unigram,
    "word pieces": word_piece,
    "words": word_level,
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request, tmp_path_factory) -> tuple[ModelTokenizer, set[int], int | None]:
    """A tokenizer of each kind, the ids of its control tokens, and the id for unknown characters."""
    tokenizer = KINDS[request.param]()
    tokenizer.add_tokens(_added())
    folder = tmp_path_factory.mktemp("kind")
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {tokenizer.token_to_id(token) for token in TOKENS}
    assert None not in ids
    return ModelTokenizer(folder), ids, tokenizer.token_to_id(UNKNOWN)


def _wide(text: str) -> str:
    return "".join(chr(ord(letter) + 0xFEE0) if "!" <= letter <= "~" else letter for letter in text)


def _disguised(token: str) -> list[str]:
    """Texts that are the token, or become it when they are normalised, or nearly so."""
    middle = len(token) // 2
    torn = [f"{token[:middle]}{between}{token[middle:]}" for between in ("\u200b", "\u00ad", "\ufeff", "\u0301", " ")]
    return [token, token * 2, f" {token} ", token.upper(), token.lower(), token.title(), _wide(token), *torn]


texts = st.lists(
    st.sampled_from([spelling for token in TOKENS for spelling in _disguised(token)])
    | st.text(st.characters(codec="utf-8"), max_size=8)
    | st.sampled_from([" ", "\n", "<", ">", "|", "\u2581", "\x00", "word"])
).map("".join)


@given(text=texts)
def test_no_text_becomes_a_control_token(kind, text):
    tokenizer, control, _ = kind
    assert not control & set(tokenizer.encode(text))


@pytest.mark.parametrize("token", TOKENS)
def test_a_control_token_in_a_text_is_spelled_out(kind, token):
    tokenizer, control, unknown = kind
    for text in _disguised(token):
        ids = tokenizer.encode(f"word {text} word")
        assert not control & set(ids)
        assert len(ids) > 2 or unknown in ids


def test_the_chat_templates_own_text_keeps_its_control_tokens(kind):
    tokenizer, control, _ = kind
    assert control <= set(tokenizer.encode_template("".join(f" {token} " for token in TOKENS)))


@given(text=st.text(st.sampled_from("abc XYZ.,(){}\n\t\u00fc\u4e2d\U0001f469 0123456789"), max_size=60))
def test_other_texts_have_the_tokens_of_the_file_itself(kind, text):
    tokenizer, _, _ = kind
    assert tokenizer.encode(text) == tokenizer.encode_template(text)


def test_the_name_of_the_unknown_token_is_not_that_token(tmp_path):
    tokenizer = unigram()
    tokenizer.add_special_tokens([UNKNOWN])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    plain = ModelTokenizer(tmp_path)
    assert 0 not in plain.encode(f"a {UNKNOWN} b")
    assert 0 in plain.encode("a \U0001f469 b")


def test_runs_of_whitespace_and_bytes_that_were_added_stay_tokens(tmp_path):
    tokenizer = sentence_piece_merges()
    tokenizer.add_tokens([AddedToken("\n\n", normalized=False), "<0x0A>", "<think>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    plain = ModelTokenizer(tmp_path)
    run, byte = (tokenizer.token_to_id(token) for token in ("\n\n", "<0x0A>"))
    assert run in plain.encode("a\n\nb")
    assert byte in plain.encode("a\nb")
    assert byte not in plain.encode("a<0x0A>b")
    assert tokenizer.token_to_id("<think>") not in plain.encode("<think>")


def test_files_with_merges_as_texts_are_read(tmp_path):
    tokenizer = byte_level()
    tokenizer.add_tokens(_added())
    file = json.loads(tokenizer.to_str())
    file["model"]["merges"] = [" ".join(merge) for merge in file["model"]["merges"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    assert tokenizer.token_to_id("<think>") not in ModelTokenizer(tmp_path).encode("<think>")


def test_an_answers_tokens_are_shown_as_before(tmp_path):
    folder = make_model_folder(tmp_path)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens(["<think>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    completed = ModelTokenizer(folder).decode_stream()
    shown = [completed(tokenizer.token_to_id(token)) for token in ("<think>", "<|end|>", "a")]
    assert "".join(shown) == "<think>a"


def test_kv_of_tokenizers_that_cut_control_tokens_alike_stays_valid(tmp_path):
    folder = make_model_folder(tmp_path)
    digests = {SegmentLayout(ModelTokenizer(Path(folder)), "Answer.", 1000).digest for _ in range(2)}
    assert len(digests) == 1
