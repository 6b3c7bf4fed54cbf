import itertools

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from protocol.errors import ConfigError
from retriever.embedding.hashing import word_tokenizer
from retriever.ingestion.chunker import Chunker
from retriever.settings import ChunkSettings


def byte_tokenizer() -> Tokenizer:
    """Every byte is a token. This is the hardest case: several tokens share one character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: number for number, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


TOKENIZERS = {"words": word_tokenizer(), "bytes": byte_tokenizer()}
WORDS = st.sampled_from(["alpha", "be", "gamma-delta", "x" * 90, "naïve", "東京", "🎈", ".", "\n\n", "a1"])
TEXTS = st.lists(WORDS, max_size=150).map(" ".join) | st.text(max_size=300)


@settings(deadline=None)
@given(text=TEXTS, size=st.integers(8, 60), data=st.data(), kind=st.sampled_from(["words", "bytes"]))
def test_chunks_cover_the_text_and_stay_in_bounds(text, size, data, kind):
    tokenizer = TOKENIZERS[kind]
    overlap = data.draw(st.integers(0, size // 2))
    title = data.draw(st.none() | st.text(st.characters(categories=["L"]), max_size=80))
    chunker = Chunker(tokenizer, 60, ChunkSettings(size=size, overlap=overlap))
    text = text.strip()
    chunks = chunker.chunks(text, title)

    covered = set()
    for chunk in chunks:
        assert len(tokenizer.encode(chunk.text, add_special_tokens=False).ids) <= size
        assert chunk.text.endswith(text[chunk.start : chunk.end])
        assert chunk.content_hash == blake3(chunk.text.encode()).hexdigest()
        covered.update(range(chunk.start, chunk.end))
    assert all(here in covered for here, char in enumerate(text) if not char.isspace() and _seen(tokenizer, text))
    for before, after in itertools.pairwise(chunks):
        assert before.start <= after.start
        assert before.end < after.end


def _seen(tokenizer, text):
    return bool(tokenizer.encode(text, add_special_tokens=False).ids)


@settings(deadline=None)
@given(count=st.integers(40, 400), size=st.integers(16, 64), data=st.data())
def test_neighbouring_chunks_overlap_by_the_configured_tokens(count, size, data):
    overlap = data.draw(st.integers(1, size // 2))
    text = " ".join(f"w{number}" for number in range(count))
    chunks = Chunker(TOKENIZERS["words"], 510, ChunkSettings(size=size, overlap=overlap)).chunks(text)
    for before, after in itertools.pairwise(chunks):
        shared = text[after.start : before.end].split()
        # Every word is one token, so no cut moves.
        assert len(shared) == overlap
        assert len(before.text.split()) == size


def test_short_document_is_one_chunk_with_its_title():
    (chunk,) = Chunker(TOKENIZERS["words"], 510, ChunkSettings()).chunks("  some text\n", "A  title")
    assert chunk.text == "A title\nsome text"


def test_every_chunk_starts_with_the_title():
    chunks = Chunker(TOKENIZERS["words"], 510, ChunkSettings(size=20, overlap=4)).chunks("word " * 100, "Title")
    assert len(chunks) > 4
    assert all(chunk.text.startswith("Title\nword") for chunk in chunks)


def test_title_is_not_repeated():
    (chunk,) = Chunker(TOKENIZERS["words"], 510, ChunkSettings()).chunks("# Title\ntext", "Title")
    assert chunk.text == "# Title\ntext"


def test_long_title_leaves_room_for_the_text():
    chunks = Chunker(TOKENIZERS["words"], 510, ChunkSettings(size=20, overlap=0)).chunks("word " * 60, "title " * 500)
    assert sum(chunk.text.count("word") for chunk in chunks) == 60
    assert len(chunks) == 4


def test_cut_prefers_a_nearby_word_boundary():
    text = " ".join(["abcdefghijklmnopqrstuvwxyz"] * 60)
    for chunk in Chunker(TOKENIZERS["words"], 510, ChunkSettings(size=33, overlap=5)).chunks(text):
        assert set(chunk.text.split()) == {"abcdefghijklmnopqrstuvwxyz"}


def test_very_long_word_is_cut():
    chunks = Chunker(TOKENIZERS["bytes"], 510, ChunkSettings(size=100, overlap=10)).chunks("x" * 1000)
    assert max(len(chunk.text) for chunk in chunks) == 100


def test_chunk_size_is_bounded_by_the_embedder():
    assert Chunker(TOKENIZERS["words"], 100, ChunkSettings(size=512)).limit == 100


@pytest.mark.parametrize("text", ["", "  \n"])
def test_blank_text_has_no_chunk(text):
    assert Chunker(TOKENIZERS["words"], 510, ChunkSettings()).chunks(text, "Title") == []


@pytest.mark.parametrize("wrong", [{"size": 4, "overlap": 0}, {"size": 100, "overlap": 51}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError):
        Chunker(TOKENIZERS["words"], 510, ChunkSettings(**wrong))
