"""Question sets have the documents that the retriever finds. Results are cached, so each is searched once."""

from collections import Counter
from itertools import islice, product
from statistics import mean

import pytest
from workload_files import write_lines

from protocol.errors import ConfigError
from ragtree_lab.workloads import question_sets
from ragtree_lab.workloads.by_name import open_workload
from ragtree_lab.workloads.question_sets import QuestionSet, estimated_tokens
from retriever.settings import HashingSettings, RetrieverSettings

COLOURS = ["amber", "beige", "coral", "denim", "ebony", "frost"]
PLACES = ["harbour", "island", "jungle", "kingdom", "lagoon"]
TITLES = [f"{colour} {place}" for colour, place in product(COLOURS, PLACES)]
HASHING = RetrieverSettings(embedder=HashingSettings())


@pytest.fixture
def data(tmp_path):
    documents = [{"doc_id": title, "text": f"Much is told about {title}."} for title in TITLES]
    questions = [{"qid": title, "question": f"What about {title}?"} for title in TITLES]
    write_lines(tmp_path / "data" / "tales" / "docs.jsonl.gz", documents)
    write_lines(tmp_path / "data" / "tales" / "questions.jsonl.gz", questions)
    lone = [{"qid": "1", "question": "Where is the coral lagoon?"}]
    write_lines(tmp_path / "data" / "lone" / "questions.jsonl.gz", lone)
    return tmp_path / "data"


@pytest.fixture
def opened(data, tmp_path):
    def open_(name="tales", seed=0, **options):
        options = {"retriever": HASHING, "cache_dir": tmp_path / "cache", "top_k": 3, **options}
        return open_workload(name, data, seed, **options)

    return open_


@pytest.fixture
def searches(monkeypatch):
    """Record each retriever that is built."""
    built = []
    build = question_sets.build_retriever
    monkeypatch.setattr(question_sets, "build_retriever", lambda *args: built.append(args) or build(*args))
    return built


def test_each_question_is_asked_once_with_its_retrieved_documents(opened):
    workload = opened()
    requests = list(workload.requests())
    assert len(requests) == workload.length == len(TITLES)
    assert {len(request.documents) for request in requests} == {3}
    # A workload's documents are the chunks in the prompt.
    assert {request.documents[0].id for request in requests} == {f"{title}#0" for title in TITLES}


def test_equal_seeds_give_equal_requests_and_others_another_order(opened):
    assert list(opened(seed=1).requests()) == list(opened(seed=1).requests())
    first, other = ([r.documents[0].id for r in opened(seed=seed).requests()] for seed in (1, 2))
    assert first != other
    assert sorted(first) == sorted(other)


def test_questions_repeat_if_there_are_more_requests(opened):
    workload = opened(requests=1000)
    asked = [request.documents[0].id for request in workload.requests()]
    assert len(asked) == workload.length == 1000
    assert len(set(asked[: len(TITLES)])) == len(TITLES)
    counts = Counter(asked)
    assert min(counts.values()) > 10


def test_requests_are_generated_lazily(opened):
    assert len(list(islice(opened(requests=10**12).requests(), 10))) == 10


def test_set_without_a_corpus_uses_another_ones(opened):
    workload = opened("lone@tales")
    assert workload.name == "lone@tales"
    (request,) = workload.requests()
    assert request.documents[0].id == "coral lagoon#0"
    assert request.question_tokens == round(5 * 1.3)


def test_cached_results_are_not_searched_again(opened, searches):
    first = list(opened().requests())
    assert list(opened().requests()) == first
    opened(seed=5, requests=7, rate=3.0, mean_tokens=100.0)
    assert len(searches) == 1


def test_only_questions_without_cached_results_are_searched(opened, searches):
    reported = []
    opened(requests=10)
    opened(requests=25, progress=lambda *step: reported.append(step))
    assert reported[-1] == ("retrieving", 15, 15)
    opened(requests=20)
    assert len(searches) == 2


@pytest.mark.parametrize("change", ["top_k", "embedder", "questions", "corpus"])
def test_changed_retrieval_inputs_cause_a_new_search(opened, data, searches, change):
    opened()
    options = {}
    if change == "top_k":
        options = {"top_k": 4}
    elif change == "embedder":
        options = {"retriever": HASHING.model_copy(update={"embedder": HashingSettings(max_tokens=64)})}
    elif change == "questions":
        write_lines(data / "tales" / "questions.jsonl.gz", [{"qid": "1", "question": "What about ebony?"}])
    else:
        write_lines(data / "tales" / "docs.jsonl.gz", [{"doc_id": "new", "text": "What about ebony?"}])
    opened(**options)
    assert len(searches) == 2


def test_smaller_top_k_uses_cached_results(opened, searches):
    many = list(opened(top_k=3).requests())
    few = list(opened(top_k=2).requests())
    assert len(searches) == 1
    assert [request.documents for request in few] == [request.documents[:2] for request in many]


def test_damaged_cache_causes_a_new_search(opened, tmp_path, searches):
    first = list(opened().requests())
    (kept,) = (tmp_path / "cache" / "bench" / "retrieved").iterdir()
    kept.write_bytes(kept.read_bytes()[:-20])
    assert list(opened().requests()) == first
    assert len(searches) == 2


def test_interrupted_search_keeps_its_results(opened, tmp_path):
    class Interrupted(Exception):
        pass

    def interrupt(step, done, total):
        if step == "retrieving" and done == 12:
            raise Interrupted

    with pytest.raises(Interrupted):
        opened(progress=interrupt)
    reported = []
    opened(progress=lambda *step: reported.append(step))
    assert reported[-1] == ("retrieving", len(TITLES) - 12, len(TITLES) - 12)


def test_lengths_have_the_requested_mean_or_those_of_the_texts(opened):
    def lengths(**options):
        documents = {document for request in opened(**options).requests() for document in request.documents}
        assert len({document.id for document in documents}) == len(documents)
        return [document.tokens for document in documents]

    assert mean(lengths(mean_tokens=1000.0)) == pytest.approx(1000, rel=0.5)
    assert len(set(lengths())) > 20
    assert set(lengths(mean_tokens=None)) == {round(6 * 1.3)}


def test_arrivals_have_the_requested_rate(opened):
    *_, last = opened(requests=5000, rate=4.0).requests()
    assert last.arrival_s == pytest.approx(5000 / 4, rel=0.1)


def test_tokens_are_estimated_by_characters_without_spaces():
    assert estimated_tokens("知识树很大") == round(5 * 1.3)
    assert estimated_tokens("") == 1


@pytest.mark.parametrize("options", [{"top_k": 0}, {"requests": 0}, {"rate": 0.0}, {"mean_tokens": 0.0}])
def test_invalid_options_are_refused_before_the_search(opened, searches, options):
    with pytest.raises(ConfigError):
        opened(**options)
    assert not searches


def test_set_without_questions_is_refused(opened, data):
    write_lines(data / "lone" / "questions.jsonl.gz", [])
    with pytest.raises(ConfigError, match="no question"):
        opened("lone@tales")


def test_broken_question_is_reported_with_its_line(opened, data):
    write_lines(data / "lone" / "questions.jsonl.gz", [{"qid": "1", "question": "Where?"}, {"qid": "2"}])
    with pytest.raises(ConfigError, match=r"questions\.jsonl\.gz, line 2: .*question"):
        opened("lone@tales")


def test_missing_corpus_is_named(data):
    with pytest.raises(ConfigError, match=r"docs\.jsonl\.gz is missing"):
        QuestionSet(data, "lone")
