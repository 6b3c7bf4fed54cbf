"""Chunks begin with headings and definitions where they can, and texts without any are cut as ever."""

import itertools
import time

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from test_retriever_chunker import TOKENIZERS

from retriever.ingestion.chunker import Chunker
from retriever.ingestion.cut_places import section_starts
from retriever.settings import ChunkSettings


def chunked(text: str, size: int, overlap: int = 0, kind: str = "words", title: str | None = None):
    return Chunker(TOKENIZERS[kind], 510, ChunkSettings(size=size, overlap=overlap)).chunks(text, title)


def starts(text: str) -> list[str]:
    return [text[at:].splitlines()[0] for at in section_starts(text)]


def test_headings_begin_sections_but_not_those_in_fenced_code():
    text = "# Top\n\ntext\n\n## One\n\n```sh\n\n# a comment\n\n```\n\n#tag\n\n###### Six\nmore\n# no blank line before"
    assert starts(text) == ["## One", "###### Six"]


@pytest.mark.parametrize(
    "definition",
    [
        "def f(x):",
        "async def f(x):",
        "class A:",
        "@cached\n@property\ndef f(self):",
        "# what it is\ndef f(x):",
        "/** Says.\n * More.\n */\nexport default function f() {",
        "public static class A {",
        "pub(crate) fn f() {",
        "func (a *A) f() {",
        "-- people\nCREATE TABLE people (",
    ],
)
def test_definitions_of_source_code_begin_sections(definition):
    text = f"first = 1\n\n\n{definition}\n    body\n\n    def inner(): pass\n\nrest"
    assert starts(text) == [definition.splitlines()[0]]


@pytest.mark.parametrize(
    "text", ["\n\n" * 100_000, "\n\n```\n" * 50_000, "\n\n# a\n" * 50_000, "\n\n" + "# \n" * 99_999]
)
def test_sections_are_found_in_linear_time(text):
    began = time.process_time()
    list(section_starts(text))
    assert time.process_time() - began < 2


def test_chunk_ends_before_a_heading_in_its_second_half_and_the_next_repeats_nothing():
    sections = [f"# Head {n}\n\n" + "word " * 13 for n in range(6)]
    # A section has 16 tokens, so that three fit, but not four.
    chunks = chunked("\n\n".join(sections), size=60, overlap=10)
    assert [chunk.text.partition("\n")[0] for chunk in chunks] == ["# Head 0", "# Head 3"]
    assert chunks[0].text.count("#") == 3


def test_heading_in_the_first_half_of_a_chunk_is_no_place_to_cut():
    text = "word " * 5 + "\n\n# Head\n\n" + "word " * 60
    first, second = chunked(text, size=40, overlap=4)[:2]
    assert "# Head" in first.text
    assert len(first.text.split()) == 40
    assert second.start < first.end


def test_section_longer_than_a_chunk_is_cut_with_overlap():
    chunks = chunked("text\n\n# Long\n\n" + " ".join(f"w{n}" for n in range(100)), size=30, overlap=6)
    for before, after in itertools.pairwise(chunks[1:]):
        assert after.start < before.end


def test_every_chunk_of_a_table_begins_with_its_column_names():
    blocks = [f"### Rows {n}\nname | size\n" + "ant | 1\n" * 4 for n in range(30)]
    for chunk in chunked("\n\n".join(blocks), size=60, overlap=10):
        assert chunk.text.splitlines()[1] == "name | size"


SECTIONED = st.lists(
    st.sampled_from(["alpha", "be", "\n\n# Head\n\n", "x" * 90, "東京", "\n\n## 🎈", "\n\ndef f(): ", "\n\n"]),
    max_size=150,
).map(" ".join)


@settings(deadline=None)
@given(text=SECTIONED, size=st.integers(8, 60), data=st.data(), kind=st.sampled_from(["words", "bytes"]))
def test_chunks_with_sections_cover_the_text_and_stay_in_bounds(text, size, data, kind):
    chunks = chunked(text.strip(), size, data.draw(st.integers(0, size // 2)), kind)
    covered = set()
    for chunk in chunks:
        assert len(TOKENIZERS[kind].encode(chunk.text, add_special_tokens=False).ids) <= size
        assert text.strip()[chunk.start : chunk.end] == chunk.text
        covered.update(range(chunk.start, chunk.end))
    assert all(here in covered for here, char in enumerate(text.strip()) if not char.isspace())
    for before, after in itertools.pairwise(chunks):
        assert before.start <= after.start
        assert before.end < after.end


def test_prose_is_cut_as_before_there_were_sections():
    paragraph = "Paragraph {n} has a class of words, # and C# among them.\n#{n} is no heading.\n    def f(): pass"
    chunks = chunked("\n\n".join(paragraph.format(n=n) for n in range(60)), 50, 8, title="A title")
    # Recorded before. Other hashes would make the KV of stored documents useless.
    hashes = "".join(chunk.content_hash for chunk in chunks)
    assert blake3(hashes.encode()).hexdigest() == "5876ddbee2d584782f2586a4249220626d432c2a0d73f0e7e0e1fb335c9b77a2"
