"""Questions are drawn in topics. Draws repeat by seed, each question comes once, and documents recur."""

from itertools import product

import pytest
from workload_files import write_lines

from protocol.errors import ConfigError
from ragtree_lab.workloads.question_sets import QuestionSet
from ragtree_lab.workloads.topics import TopicDraw
from retriever.settings import HashingSettings, RetrieverSettings

COLOURS = ["amber", "beige", "coral", "denim", "ebony", "frost"]
PLACES = ["harbour", "island", "jungle", "kingdom", "lagoon"]
TITLES = [f"{colour} {place}" for colour, place in product(COLOURS, PLACES)]
HASHING = RetrieverSettings(embedder=HashingSettings())


@pytest.fixture
def data(tmp_path):
    def questions(answered=True, gold=True):
        return [
            {"qid": title, "question": f"What about {title}?"}
            | ({"answers": ["much"]} if answered else {})
            | ({"gold_doc_ids": [title]} if gold else {})
            for title in TITLES
        ]

    documents = [{"doc_id": title, "text": f"Much is told about {title}."} for title in TITLES]
    for name, asked in {
        "tales": questions(),
        "without-gold": questions(gold=False),
        "unanswered": questions(answered=False),
    }.items():
        write_lines(tmp_path / "data" / name / "docs.jsonl.gz", documents)
        write_lines(tmp_path / "data" / name / "questions.jsonl.gz", asked)
    return tmp_path / "data"


@pytest.fixture
def drawn(data, tmp_path):
    async def draw(name="tales", count=8, topic=4, seed=0):
        drawing = TopicDraw(HASHING, tmp_path / "corpora", 3, topic, seed, lambda *_: None)
        return await drawing.draw(QuestionSet(data, name), count)

    return draw


def ids(found):
    return [each.question.qid for each in found]


async def test_each_question_comes_once_with_its_retrieved_documents(drawn):
    found = await drawn()
    assert len(set(ids(found))) == len(found) == 8
    for each in found:
        assert len(each.chunks) == 3
        assert each.chunks[0].document_id == each.question.qid
        assert each.chunks[0].text == f"Much is told about {each.question.qid}."


async def test_equal_seeds_draw_equal_questions(drawn):
    assert await drawn(seed=1) == await drawn(seed=1)
    assert ids(await drawn(seed=1)) != ids(await drawn(seed=2))


async def test_topic_has_questions_that_retrieved_documents_answer(drawn):
    found = await drawn(count=4, topic=4)
    mentioned = [chunk.document_id for each in found for chunk in each.chunks]
    # The documents of all but the first question were retrieved for another question.
    assert sum(mentioned.count(qid) >= 2 for qid in ids(found)) >= 3
    assert len(set(mentioned)) < len(mentioned)


async def test_longer_topics_repeat_more_documents(drawn):
    async def repeated(topic):
        keys = [chunk.document_id for each in await drawn(count=12, topic=topic) for chunk in each.chunks]
        return len(keys) - len(set(keys))

    assert await repeated(12) > await repeated(1)


async def test_draws_stop_at_the_size_of_the_set(drawn):
    assert sorted(ids(await drawn(count=1000))) == sorted(TITLES)


async def test_questions_without_gold_documents_are_separate_topics(drawn):
    assert len(set(ids(await drawn("without-gold", topic=20)))) == 8


async def test_set_without_answers_is_refused(drawn):
    with pytest.raises(ConfigError, match="no question of 'unanswered' has an answer"):
        await drawn("unanswered")
