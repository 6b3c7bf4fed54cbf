"""What the commands that search share, ``ragtree query`` and ``ragtree search``: options, and warnings."""

import json
from typing import Annotated, Any

import typer

from protocol.graph import GraphMode
from protocol.retrieval import SearchKind
from services.cli.output import errors

FiltersOption = Annotated[str | None, typer.Option(help="Metadata filter, as JSON.")]
SearchKindOption = Annotated[
    SearchKind | None, typer.Option(help="Search by embeddings, by words, or by both. By default as the collection.")
]
RerankOption = Annotated[
    bool | None, typer.Option(help="Whether a reranker orders the results. By default, if one is configured.")
]
ModeOption = Annotated[
    GraphMode,
    typer.Option(help="How the collection's graph is used: from entities, from statements, from both, or not at all."),
]
EntityTokensOption = Annotated[
    int | None, typer.Option("--max-entity-tokens", min=0, help="Most tokens of the facts about one entity.")
]
RelationTokensOption = Annotated[
    int | None, typer.Option("--max-relation-tokens", min=0, help="Most tokens of all facts of the graph.")
]
TotalTokensOption = Annotated[int | None, typer.Option("--max-total-tokens", min=1, help="Most tokens of the prompt.")]
ContextOption = Annotated[
    bool, typer.Option("--only-need-context", help="Print what the model would read, and generate nothing.")
]


def search_body(
    question: str,
    collection: str,
    top_k: int | None,
    filters: str | None,
    search: SearchKind | None,
    rerank: bool | None,
    mode: GraphMode,
) -> dict[str, Any]:
    """The request's fields that control the search. Raises typer.BadParameter for filters that are not JSON."""
    given = {"query": question, "collection": collection, "top_k": top_k, "search": search, "rerank": rerank}
    if mode is not GraphMode.NAIVE:
        given["mode"] = mode
    body = {name: value for name, value in given.items() if value is not None}
    if filters is not None:
        try:
            body["filters"] = json.loads(filters)
        except ValueError as error:
            raise typer.BadParameter(f"not JSON: {error}", param_hint="--filters") from error
    return body


def context_body(entity: int | None, relation: int | None, total: int | None, only_context: bool) -> dict[str, Any]:
    """The request's fields that bound the prompt's context: most tokens of an entity's facts, of all facts, of all."""
    given = {"max_entity_tokens": entity, "max_relation_tokens": relation, "max_total_tokens": total}
    body: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return body | {"only_need_context": True} if only_context else body


def warn_of_gaps(reply: dict[str, Any]) -> None:
    """Say on standard error what a reply's results lack: those of lost shards, and reranking."""
    if reply["partial"]:
        missing = ", ".join(reply["missing_shards"])
        errors.print(f"[bold yellow]partial:[/] results of these shards are missing: {missing}")
    if reply["reranking"] and reply["reranking"]["reason"]:
        errors.print(f"[bold yellow]not reranked:[/] {reply['reranking']['reason']}")
