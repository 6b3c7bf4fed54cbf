"""``ragtree query``: asks a question and streams the answer, with its sources and timings."""

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from protocol.documents import DEFAULT_COLLECTION
from protocol.graph import GraphMode
from services.cli.connection import ApiKeyOption, CollectionOption, JsonOption, UrlOption, connect
from services.cli.output import errors, results
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
    body = search_body(question, collection, top_k, filters, search, rerank, mode)
    body |= context_body(max_entity_tokens, max_relation_tokens, max_total_tokens, only_need_context)
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
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
    warn_of_gaps(response)
    if response["finish_reason"] == "length":
        written = response["usage"]["completion_tokens"]
        errors.print(f"[bold yellow]cut:[/] the answer reached its longest length, {written} tokens (--max-tokens)")
    _print_sources(response)
    if not only_need_context:
        _print_timings(response)


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
        highlight=False,
    )
