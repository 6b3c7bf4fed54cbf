"""Names of entities: which spellings are the same."""

import pytest

from retriever.graph.names import LONGEST_NAME, name_key, tidy, words_of


@pytest.mark.parametrize(
    "spelling",
    ["Niels Bohr", "niels bohr", "  Niels\n Bohr ", "Niels-Bohr", "the Niels Bohr", '"Niels Bohr"', "Ni\u0308els Bohr"],
)
def test_spellings_of_one_name_share_a_key(spelling):
    assert name_key(spelling) == "niels bohr"


@pytest.mark.parametrize("name", ["", " ", "...", "\u201c\u201d", "x" * (LONGEST_NAME + 1), "\x00"])
def test_what_is_no_name_has_no_key(name):
    assert name_key(name) == ""


def test_an_article_alone_is_a_name():
    assert name_key("The A") == "a"
    assert name_key("the") == "the"


def test_a_name_in_another_script_keeps_its_letters():
    assert name_key("\u5317\u4eac \u5e02") == "\u5317\u4eac \u5e02"


def test_a_tidy_name_has_single_spaces_and_no_quotation_marks():
    assert tidy(' "Victim  of\nRomance" ') == "Victim of Romance"


def test_words_of_a_text_are_plain():
    assert words_of("The *NIELS* Bohr_Institute, stra\u00dfe 7.") == [
        "the",
        "niels",
        "bohr",
        "institute",
        "strasse",
        "7",
    ]
    assert words_of("\ufb01ve Caf\u00e9s") == ["five", "cafes"]
    assert words_of(" .\n") == []
