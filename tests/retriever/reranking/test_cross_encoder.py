"""The cross-encoder, as a real model with random weights."""

import asyncio

import pytest
import torch
from retriever_cases import ids, put_lines, running, search
from tiny_cross_encoder import WORDS, make_cross_encoder
from transformers import AutoTokenizer, BertForSequenceClassification

from protocol.errors import ConfigError, RerankFailed
from retriever.reranking.factory import build_reranker
from retriever.settings import CrossEncoderSettings

TEXTS = [" ".join(WORDS[at : at + length]) for at, length in ((0, 5), (10, 9), (20, 3), (30, 12), (40, 1))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_cross_encoder(tmp_path_factory.mktemp("cross-encoder"))


def settings(folder, **changes) -> CrossEncoderSettings:
    return CrossEncoderSettings(**{"model": str(folder), "max_sequence": 64, "timeout_s": 30, **changes})


def expected(folder, query, texts) -> list[float]:
    """The scores by transformers alone, one pair at a time."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = BertForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        return [
            float(torch.sigmoid(model(**tokenizer(query, text, return_tensors="pt")).logits[0, 0])) for text in texts
        ]


async def test_scores_are_those_of_the_model(folder):
    reranker = build_reranker(settings(folder))
    scores = await reranker.scores("w1 w2", TEXTS, 2)
    assert list(scores) == pytest.approx(expected(folder, "w1 w2", TEXTS), abs=1e-4)
    assert len(set(scores)) == len(TEXTS)
    assert list(await reranker.scores("w50", TEXTS, 2)) != list(scores)
    await reranker.close()


async def test_more_texts_than_are_scored_at_once_have_scores_in_their_order(folder):
    reranker = build_reranker(settings(folder))
    texts = [f"{text} w{number}" for number in range(9) for text in TEXTS]
    scores = await reranker.scores("w1 w2", texts, 2)
    assert list(scores) == pytest.approx(expected(folder, "w1 w2", texts), abs=1e-4)
    await reranker.close()


async def test_long_texts_are_cut(folder):
    reranker = build_reranker(settings(folder))
    long = " ".join(WORDS * 10)
    cut, longer = await reranker.scores("w1", [long, f"{long} w3"], 2)
    assert cut == longer
    await reranker.close()


async def test_queries_at_once_do_not_disturb_each_other(folder):
    reranker = build_reranker(settings(folder))
    queries = WORDS[:8]
    together = await asyncio.gather(*(reranker.scores(query, TEXTS, 5) for query in queries))
    for query, scores in zip(queries, together, strict=True):
        assert list(scores) == pytest.approx(expected(folder, query, TEXTS), abs=1e-4)
    await reranker.close()


async def test_closed_reranker_fails(folder):
    reranker = build_reranker(settings(folder))
    await reranker.close()
    with pytest.raises(RerankFailed):
        await reranker.scores("w1", TEXTS, 5)


def test_missing_model_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError):
        build_reranker(settings(tmp_path))
    with pytest.raises(ConfigError):
        build_reranker(settings(tmp_path / "nowhere"))


def test_pickled_weights_are_refused(tmp_path):
    (make_cross_encoder(tmp_path) / "model.safetensors").unlink()
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="safetensors"):
        build_reranker(settings(tmp_path))


def test_model_with_several_scores_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="3 scores"):
        build_reranker(settings(make_cross_encoder(tmp_path, labels=3)))


async def test_search_is_reranked_by_the_model(tmp_path, folder):
    async with running(tmp_path, reranker=settings(folder, candidates=5)) as retriever:
        await put_lines(retriever, [{"id": str(at), "text": text} for at, text in enumerate(TEXTS)])
        best = await search(retriever, "w1 w2", top_k=3)
        scores = expected(folder, "w1 w2", TEXTS)
        order = sorted(range(len(TEXTS)), key=lambda at: -scores[at])[:3]
        assert ids(best) == [str(at) for at in order]
        assert best.scores == pytest.approx([scores[at] for at in order], abs=1e-4)
        assert best.reranked
