"""``ragtree search``: finds the passages that a question would be answered from."""

import json
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from protocol.documents import DEFAULT_COLLECTION
from protocol.graph import GraphMode
from services.cli.connection import ApiKeyOption, CollectionOption, JsonOption, UrlOption, connect
from services.cli.output import results
from services.cli.search_options import (
    ContextOption,
    EntityTokensOption,
    FiltersOption,
    ModeOption,
    RelationTokensOption,
    RerankOption,
    SearchKindOption,
    TotalTokensOption,
    context_body,
    search_body,
    warn_of_gaps,
)

_MOST_RELATIONS = 5


def search(
    question: Annotated[str, typer.Argument(help="The question.")],
    collection: CollectionOption = DEFAULT_COLLECTION,
    top_k: Annotated[int | None, typer.Option(help="Number of passages.")] = None,
    filters: FiltersOption = None,
    search: SearchKindOption = None,
    rerank: RerankOption = None,
    mode: ModeOption = GraphMode.NAIVE,
    max_entity_tokens: EntityTokensOption = None,
    max_relation_tokens: RelationTokensOption = None,
    max_total_tokens: TotalTokensOption = None,
    only_need_context: ContextOption = False,
    url: UrlOption = None,
    api_key: ApiKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search without an answer, and print the passages."""
    body = search_body(question, collection, top_k, filters, search, rerank, mode)
    body |= context_body(max_entity_tokens, max_relation_tokens, max_total_tokens, only_need_context)
    found = connect(url, api_key).search(body)
    if as_json:
        print(json.dumps(found))
        return
    warn_of_gaps(found)
    if only_need_context:
        print(found["context"])
        return
    _print_passages(found)
    if found["graph"]:
        _print_relations(found["graph"]["relations"][:_MOST_RELATIONS])
    results.print(
        f"{found['search']} search of {found['collection']}: {found['timings']['total_ms']:.0f} ms",
        style="dim",
        highlight=False,
    )


def _print_passages(found: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 1, 0))
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("document", max_width=40)
    table.add_column("passage", ratio=1)
    for result in found["results"]:
        # Text, not str: rich would take brackets in a document for markup.
        table.add_row(f"{result['score']:.3f}", Text(_place(result)), Text(result["text"]))
    results.print(table)


def _print_relations(relations: list[dict[str, Any]]) -> None:
    for relation in relations:
        stated = f"{relation['head']} -{relation['relation']}-> {relation['tail']}"
        results.print(Text.assemble(stated, (f"  {relation['document_id']}", "dim")))


def _place(result: dict[str, Any]) -> str:
    where = _range("page", result["pages"]) or _range("line", result["lines"])
    return "\n".join(filter(None, [result["document_id"], result["title"], where]))


def _range(unit: str, given: dict[str, int] | None) -> str:
    if given is None:
        return ""
    first, last = given["first"], given["last"]
    return f"{unit} {first}" if first == last else f"{unit}s {first}-{last}"
