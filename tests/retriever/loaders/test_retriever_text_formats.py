"""CSV, JSON, source code, the structure of HTML, and the encodings of all texts."""

import codecs
import json

import pytest

from protocol.errors import BrokenDocument, EmptyDocument, InvalidEncoding
from retriever.loaders import base
from retriever.loaders.registry import LoaderRegistry, media_type_of


def load(content: str | bytes, suffix: str) -> str:
    media_type = media_type_of(f"file.{suffix}")
    assert media_type
    content = content.encode() if isinstance(content, str) else content
    return LoaderRegistry().load(content, media_type).text


@pytest.mark.parametrize(
    ("content", "suffix"),
    [
        ('name,note\r\nant,"small, ""red"""\r\n\r\nbee,"two\r\nlines"\r\n', "csv"),
        ('name;note\nant;"small, ""red"""\nbee;"two\nlines"\n', "csv"),
        ('name\tnote\nant\tsmall, "red"\nbee\t"two\nlines"', "tsv"),
    ],
)
def test_csv_gives_rows_whatever_its_delimiter(content, suffix):
    assert load(content, suffix) == 'name | note\nant | small, "red"\nbee | two lines'


def test_quoted_delimiters_do_not_count():
    assert load('"a,b,c,d";e\n"1,5";2\n', "csv") == "a,b,c,d | e\n1,5 | 2"


def test_long_csv_repeats_its_column_names():
    rows = "\n".join(f"{n},{n * n}" for n in range(2, 20_001))
    blocks = load(f"number,square\n{rows}", "csv").split("\n\n")
    assert blocks[0].startswith("number | square\n2 | 4\n")
    assert all(block.splitlines()[1] == "number | square" for block in blocks[1:])
    assert blocks[-1].startswith("### Rows 199")
    assert blocks[-1].splitlines()[0].endswith("to 20000")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('a,b\n1,"never closed\n2,3\n', "unexpected end of data in line 3"),
        ('a,b\n"1"2,3\n', "expected after '\"' in line 2"),
        ("a,b\n" + "x" * 200_000, "field larger than field limit .* in line 2"),
        ("a,b\n\x00,\x01", "binary"),
    ],
)
def test_broken_csv_is_refused(content, message):
    with pytest.raises(BrokenDocument, match=message):
        load(content, "csv")


def test_text_of_a_table_is_bounded(monkeypatch):
    monkeypatch.setattr(base, "MOST_CHARACTERS", 10_000)
    assert load("a,b\n" * 1000, "csv")
    with pytest.raises(BrokenDocument, match="more than 10,000 characters"):
        load("a,b\n" * 3000, "csv")


def test_json_object_becomes_sections():
    value = {
        "name": "Ant",
        "facts": {"legs": 6, "parts": ["head", {"name": "thorax"}], "wings": None},
        "size": 1.10,
        "seen": [{"place": "here", "count": 1e3}, {"place": "there", "count": 2}],
        "empty": [],
        "tame": False,
    }
    text = json.dumps(value).replace("1.1,", "1.10,")
    assert load(text, "json").split("\n\n") == [
        "name: Ant\nsize: 1.10\ntame: false",
        *("# facts", "legs: 6\nparts:\n  - head\n  -\n    name: thorax\nwings: null"),
        *("# seen", "place | count\nhere | 1000.0\nthere | 2"),
    ]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('[{"a": 1}, {"b": 2}]', "a: 1\n\nb: 2"),
        ('["one", "two"]', "one\n\ntwo"),
        ('"a text"', "a text"),
        ("1" * 5000, "1" * 5000),
        ("[NaN]", "NaN"),
    ],
)
def test_other_json(content, text):
    assert load(content, "json") == text


@pytest.mark.parametrize("empty", ["[]", "{}", '""', '{"a": []}'])
def test_empty_json_is_refused(empty):
    with pytest.raises(EmptyDocument):
        load(empty, "json")


@pytest.mark.parametrize("levels", [150, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_json_nested_too_deep_is_refused(levels, opening, closing):
    with pytest.raises(BrokenDocument, match="deeper than 100 levels"):
        load(opening * levels + "1" + closing * levels, "json")


@pytest.mark.parametrize("content", ["{", "{'a': 1}", '{"a": 1} {"a": 2}', "%PDF-1.7", "", "\x00"])
def test_broken_json_is_refused(content):
    with pytest.raises(BrokenDocument):
        load(content, "json")


@pytest.mark.parametrize("suffix", ["py", "TS", "go", "rs", "h", "sql", "yaml", "toml", "sh"])
def test_source_code_is_kept_as_it_is(suffix):
    source = "# größe\ndef size():\n\treturn 1\n\n\nclass A:\n    pass"
    assert load(source, suffix) == source


def test_binary_file_with_the_suffix_of_source_code_is_refused():
    with pytest.raises(BrokenDocument, match="binary"):
        load(b"G@\x00\x10\x00\x02", "ts")


@pytest.mark.parametrize("suffix", ["csv", "json", "py", "txt", "md", "html"])
@pytest.mark.parametrize(
    ("mark", "encoding"),
    [
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (codecs.BOM_UTF32_BE, "utf-32-be"),
    ],
)
def test_byte_order_mark_names_the_encoding(suffix, mark, encoding):
    assert load(mark + '"Grüße 🎈"'.encode(encoding), suffix).strip('"') == "Grüße 🎈"


@pytest.mark.parametrize("suffix", ["csv", "json", "py", "txt"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('"é" "'.encode() + b'\xe9"', "not UTF-8: invalid continuation byte at byte 6"),
        (codecs.BOM_UTF8 + b"\xe9", "not UTF-8"),
        (codecs.BOM_UTF16_LE + "a".encode("utf-16-le") + b"b", "not UTF-16: truncated data at byte"),
        (codecs.BOM_UTF32_LE + b"\xff\xff\xff\xff", "not UTF-32"),
    ],
    ids=["mixed", "marked", "cut off", "invalid"],
)
def test_text_in_several_encodings_is_refused(suffix, content, message):
    with pytest.raises(InvalidEncoding, match=message):
        load(content, suffix)


def test_html_keeps_headings_and_tables():
    page = """<h1>The <b>pa</b>ge</h1>intro<h3><div>Deep</div>er</h3><h2></h2>
      <table><caption>Sizes</caption><tr><th>name</th><th>size</th></tr>
      <tr><td><p>ant</p></td><td>1 <i>mm</i></td></tr></table><p>end</p>"""
    assert load(page, "html").split("\n\n") == [
        *("# The page\nintro", "### Deep er", "Sizes", "name | size\nant | 1 mm", "end"),
    ]


def test_html_table_that_lays_out_a_page_is_no_table():
    page = "<table><tr><td><h1>Head</h1><p>left</p></td><td>right</td></tr></table>"
    assert load(page, "html").split("\n\n") == ["# Head", "left", "right"]
