import pytest
from retriever_cases import ids, put, put_lines, running, search

from protocol.errors import InvalidRequest, UnknownFilterKey
from protocol.filters import Comparison, Compound

DOCUMENTS = {
    "number": {"year": 2020.0, "lang": "en"},
    "older": {"year": 1999.0, "lang": "de"},
    "string": {"year": "2020", "lang": "en"},
    "truth": {"year": True},
    "without": {"lang": "fr"},
}


@pytest.fixture
async def retriever(tmp_path):
    async with running(tmp_path) as retriever:
        documents = [{"id": id_, "text": "common words", "attributes": kept} for id_, kept in DOCUMENTS.items()]
        await put_lines(retriever, documents)
        yield retriever


def is_(op, value, key="year"):
    return Comparison(key, op, value)


ALL = set(DOCUMENTS)


@pytest.mark.parametrize(
    ("filters", "passing"),
    [
        (is_("eq", 2020.0), {"number"}),
        (is_("eq", 2020), {"number"}),
        (is_("eq", "2020"), {"string"}),
        (is_("eq", True), {"truth"}),
        (is_("eq", 1.0), set()),
        (is_("eq", False), set()),
        (is_("ne", 2020.0), ALL - {"number"}),
        (is_("ne", "en", "lang"), ALL - {"number", "string"}),
        (is_("gt", 1999.0), {"number"}),
        (is_("gte", 1999.0), {"number", "older"}),
        (is_("lt", 2020.0), {"older"}),
        (is_("lte", 2020.0), {"number", "older"}),
        (is_("lt", "3"), {"string"}),
        (is_("gte", "en", "lang"), {"number", "string", "without"}),
        (is_("in", (2020.0, "2020")), {"number", "string"}),
        (is_("in", ()), set()),
        (is_("nin", (2020.0, "2020")), {"older", "truth", "without"}),
        (is_("nin", ()), ALL),
        (Compound("and", (is_("gte", 1990.0), is_("eq", "en", "lang"))), {"number"}),
        (Compound("or", (is_("eq", True), is_("eq", "fr", "lang"))), {"truth", "without"}),
        (
            Compound("and", (is_("ne", True), Compound("or", (is_("eq", "2020"), is_("lt", 2000.0))))),
            {"string", "older"},
        ),
        (is_("eq", "' OR 1=1 --"), set()),
        (is_("eq", "\ud800"), set()),
        (is_("eq", 10**30), set()),
        (is_("in", tuple(float(year) for year in range(2020, 3020))), {"number"}),
        (is_("nin", (*map(str, range(2000, 2998)), 2020.0, True)), {"older", "without"}),
    ],
)
async def test_filter_matches(retriever, filters, passing):
    assert set(ids(await search(retriever, "common words", top_k=10, filters=filters))) == passing


def nested(depth):
    return is_("eq", 1.0) if depth == 1 else Compound("and", (nested(depth - 1),))


@pytest.mark.parametrize(
    "filters",
    [
        is_("in", 5.0),
        is_("nin", "text"),
        is_("eq", (1.0,)),
        is_("gt", True),
        is_("eq", None),
        is_("in", (None,)),
        is_("eq", 10**400),
        is_("like", "x"),
        Compound("and", ()),
        Compound("not", (is_("eq", 1.0),)),
        Compound("or", (is_("eq", 1.0),) * 129),
        nested(9),
        is_("eq", 1.0, "\ud800"),
        is_("in", (1.0,) * 1001),
        Compound("or", (is_("in", (1.0,) * 1000),) * 11),
    ],
)
async def test_malformed_filter_is_refused(retriever, filters):
    with pytest.raises(InvalidRequest) as caught:
        await search(retriever, "words", filters=filters)
    assert caught.value.param == "filters"
    assert caught.type is InvalidRequest


async def test_deepest_valid_filter(retriever):
    assert ids(await search(retriever, "words", filters=nested(8))) == []


@pytest.mark.parametrize("key", ["yeer", "", "year'--"])
async def test_unknown_key_is_refused(retriever, key):
    filters = Compound("or", (is_("eq", 2020.0), is_("eq", 1.0, key)))
    with pytest.raises(UnknownFilterKey) as caught:
        await search(retriever, "words", filters=filters)
    assert caught.value.param == "filters"


async def test_key_of_another_collection_is_unknown(retriever):
    await put(retriever, "a", "text", collection="other", attributes={"only_here": 1.0})
    assert ids(await search(retriever, "text", collection="other", filters=is_("eq", 1.0, "only_here"))) == ["a"]
    with pytest.raises(UnknownFilterKey):
        await search(retriever, "words", filters=is_("eq", 1.0, "only_here"))


async def test_changed_attributes_apply_at_once(retriever):
    await put(retriever, "older", "common words", attributes={"year": 2024.0})
    assert ids(await search(retriever, "words", filters=is_("gt", 2020.0))) == ["older"]
