"""``ragtree search`` and ``ragtree query``: the passages that answer a question, and the answer itself, streamed."""

import json
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from protocol.documents import DEFAULT_COLLECTION
from protocol.graph import GraphMode
from protocol.retrieval import SearchKind
from services.cli.connection import ApiKeyOption, CollectionOption, JsonOption, UrlOption, connect
from services.cli.graph import print_relation
from services.cli.output import errors, results

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
    body = _body(
        filters,
        mode,
        only_need_context,
        query=question,
        collection=collection,
        top_k=top_k,
        search=search,
        rerank=rerank,
        max_entity_tokens=max_entity_tokens,
        max_relation_tokens=max_relation_tokens,
        max_total_tokens=max_total_tokens,
    )
    found = connect(url, api_key).search(body)
    if as_json:
        print(json.dumps(found))
        return
    _warn_of_gaps(found)
    if only_need_context:
        print(found["context"])
        return
    _print_passages(found)
    if found["graph"]:
        for relation in found["graph"]["relations"][:_MOST_RELATIONS]:
            print_relation(relation)
    results.print(
        f"{found['search']} search of {found['collection']}: {found['timings']['total_ms']:.0f} ms", style="dim"
    )


def query(
    question: Annotated[str, typer.Argument(help="The question.")],
    collection: CollectionOption = DEFAULT_COLLECTION,
    top_k: Annotated[int | None, typer.Option(help="Number of chunks to answer from.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer, in tokens.")] = None,
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
    """Ask a question and stream the answer."""
    body = _body(
        filters,
        mode,
        only_need_context,
        query=question,
        collection=collection,
        top_k=top_k,
        search=search,
        rerank=rerank,
        max_entity_tokens=max_entity_tokens,
        max_relation_tokens=max_relation_tokens,
        max_total_tokens=max_total_tokens,
        max_tokens=max_tokens,
    )
    last: dict[str, Any] = {}
    for event in connect(url, api_key).query(body):
        last = event
        if event["type"] == "output_text.delta" and not as_json:
            print(event["delta"], end="", flush=True)
    response = last.get("response")
    if response is None:
        print()
        errors.print(f"[bold red]error:[/] {last.get('error', {}).get('message', 'the stream ended early')}")
        raise typer.Exit(1)
    if as_json:
        print(json.dumps(response))
        return
    print("\n")
    _warn_of_gaps(response)
    if response["finish_reason"] == "length":
        written = response["usage"]["completion_tokens"]
        errors.print(f"[bold yellow]cut:[/] the answer reached its longest length, {written} tokens (--max-tokens)")
    _print_sources(response)
    if not only_need_context:
        _print_timings(response)


def _body(filters: str | None, mode: GraphMode, only_context: bool, **given: object) -> dict[str, Any]:
    """Return the request, with what is ``given``. Raises typer.BadParameter for filters that are not JSON."""
    body = {name: value for name, value in given.items() if value is not None}
    if mode is not GraphMode.NAIVE:
        body["mode"] = mode
    if only_context:
        body["only_need_context"] = True
    if filters is not None:
        try:
            body["filters"] = json.loads(filters)
        except ValueError as error:
            raise typer.BadParameter(f"not JSON: {error}", param_hint="--filters") from error
    return body


def _warn_of_gaps(reply: dict[str, Any]) -> None:
    """Say on standard error what a reply's results lack: those of lost shards, and reranking."""
    if reply["partial"]:
        missing = ", ".join(reply["missing_shards"])
        errors.print(f"[bold yellow]partial:[/] results of these shards are missing: {missing}")
    if reply["reranking"] and reply["reranking"]["reason"]:
        errors.print(f"[bold yellow]not reranked:[/] {reply['reranking']['reason']}")


def _print_passages(found: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 1, 0))
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("document", max_width=40)
    table.add_column("passage", ratio=1)
    for result in found["results"]:
        # Text, not str: rich would take brackets in a document for markup.
        table.add_row(f"{result['score']:.3f}", Text(_place(result)), Text(result["text"]))
    results.print(table)


def _place(result: dict[str, Any]) -> str:
    where = _range("page", result["pages"]) or _range("line", result["lines"])
    return "\n".join(filter(None, [result["document_id"], result["title"], where]))


def _range(unit: str, given: dict[str, int] | None) -> str:
    if given is None:
        return ""
    first, last = given["first"], given["last"]
    return f"{unit} {first}" if first == last else f"{unit}s {first}-{last}"


def _print_sources(response: dict[str, Any]) -> None:
    table = Table(title="Sources", title_justify="left", box=None, pad_edge=False)
    table.add_column("score", justify="right")
    table.add_column("document")
    table.add_column("chunk", justify="right")
    given = {citation["index"] for citation in response["citations"]}
    cited = {passage["index"] for passage in response["cited"]}
    for result in response["results"]:
        mark = "" if result["index"] in given else " (left out: the prompt was full)"
        mark = " (cited)" if result["index"] in cited else mark
        table.add_row(f"{result['score']:.3f}", f"{result['document_id']}{mark}", str(result["chunk_id"]))
    results.print(table)


def _print_timings(response: dict[str, Any]) -> None:
    timings, usage = response["timings"], response["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    overlapped = timings["retrieval_ms"] - timings["non_overlapped_ms"]
    search = f"search {timings['retrieval_ms']:.0f}" + (f", {overlapped:.0f} of it overlapped" if overlapped else "")
    results.print(
        f"first token after {timings['ttft_ms']:.0f} ms ({search}, "
        f"queue {timings['queue_ms']:.0f}, prefill {timings['prefill_ms']:.0f}); "
        f"{usage['prompt_tokens']} prompt tokens, {cached} of them cached; "
        f"{usage['completion_tokens']} answer tokens, {timings['total_ms'] / 1000:.1f} s in all",
        style="dim",
    )
