"""Questions with chunks that hold the answer, and with chunks that do not."""

import gzip
import json

import pytest

from examine.evaluation.scores import holds_answer
from protocol.errors import ConfigError
from ragtree_lab.prompts.questions import QuestionDraw
from ragtree_lab.workloads.datasets import Dataset
from retriever.settings import HashingSettings, RetrieverSettings

TOWNS = ("Bree", "Esgaroth", "Dale", "Edoras", "Pelargir", "Tharbad", "Annuminas", "Fornost", "Umbar", "Osgiliath")


def written(folder, name, lines):
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / name, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


@pytest.fixture
def root(tmp_path):
    """Ten towns, each with the name of its mayor in a document of its own."""
    documents = [{"doc_id": town, "text": f"The mayor of {town} is called mayor {town}son."} for town in TOWNS]
    questions = [
        {"qid": town, "question": f"Who is the mayor of {town}?", "answers": [f"{town}son"], "gold_doc_ids": [town]}
        for town in TOWNS
    ]
    written(tmp_path / "towns", "docs.jsonl.gz", documents)
    written(tmp_path / "towns", "questions.jsonl.gz", questions)
    marked = {"question": "Who is the mayor of Nowhere?", "answers": ["Unable to answer"], "lang": "en"}
    foreign = {"qid": "zh", "question": "Who is the mayor of Dale?", "answers": ["Daleson"], "lang": "zh"}
    asked = [*questions[:4], foreign, *({"qid": f"no {number}", **marked} for number in range(3))]
    written(tmp_path / "marked", "docs.jsonl.gz", documents)
    written(tmp_path / "marked", "questions.jsonl.gz", asked)
    return tmp_path


@pytest.fixture
def draw(tmp_path):
    settings = RetrieverSettings(embedder=HashingSettings(kind="hashing"))
    return QuestionDraw(settings, tmp_path / "store", 2, 0, lambda *_: None)


async def test_half_of_the_questions_have_their_answer_and_half_have_not(root, draw):
    drawn = await draw.draw(Dataset(root, "towns"), 3, 0)
    assert [bool(asked.answers) for asked in drawn] == [True, False] * 3
    assert len({asked.text for asked in drawn}) == 6
    for asked in drawn:
        town = asked.text.split()[-1].rstrip("?")
        assert len(asked.chunks) == 2
        assert any(holds_answer(chunk.text, [f"{town}son"]) for chunk in asked.chunks) is bool(asked.answers)


async def test_what_is_skipped_is_not_asked_again(root, draw):
    first = await draw.draw(Dataset(root, "towns"), 2, 0)
    later = await draw.draw(Dataset(root, "towns"), 2, 2)
    assert len(later) == 4
    assert not {asked.text for asked in first} & {asked.text for asked in later}
    with pytest.raises(ConfigError, match="no question left"):
        await draw.draw(Dataset(root, "towns"), 2, 9)


async def test_a_set_may_say_which_questions_it_does_not_answer(root, draw):
    drawn = await draw.draw(Dataset(root, "marked"), 9, 0)
    unanswerable = [asked for asked in drawn if not asked.answers]
    assert [asked.text for asked in unanswerable] == ["Who is the mayor of Nowhere?"] * 3
    # The Chinese question is left out.
    assert len(drawn) - len(unanswerable) == 4
