"""The sources of a campaign's inputs, and how many of each are tried at once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from loadtest.errors import BadOption
from ragtree_lab.fuzz.drawing import Strategies
from ragtree_lab.fuzz.files.uploads import file_uploads, real_files
from ragtree_lab.fuzz.inputs import questions, routes, schemas, wire
from ragtree_lab.fuzz.inputs.surface import surface

_ROOT = Path(__file__).parents[3]
REAL = (_ROOT / "docs", _ROOT / "examples")


class Lane(NamedTuple):
    """Sources that are tried in turn by so many clients at once."""

    name: str
    sources: tuple[str, ...]
    clients: int


LANES = (
    Lane("questions", ("sampling", "schemas", "conversations", "choices", "leaving", "sampling", "bursts"), 2),
    Lane("surface", ("surface", "names", "pages", "json", "administration", "searches", "embeddings", "surface"), 3),
    Lane("documents", ("documents", "repeats"), 1),
    Lane("files", ("files",), 6),
    Lane("wire", ("wire",), 6),
)
"""As many questions at once as the stranger's key may have under way, so that few of them are refused for that."""


def lanes_of(only: Sequence[str]) -> list[Lane]:
    """The lanes and sources of these names; all of them without names. Raises BadOption."""
    known = {name for lane in LANES for name in (lane.name, *lane.sources)}
    if unknown := sorted(set(only) - known):
        raise BadOption(f"no lane or source is named {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    chosen = []
    for lane in LANES:
        whole = not only or lane.name in only
        sources = lane.sources if whole else tuple(source for source in lane.sources if source in only)
        if sources:
            chosen.append(lane._replace(sources=sources))
    return chosen


def strategies(openapi: dict[str, Any], model: str, judged_tenant: str, folders: Sequence[Path]) -> Strategies:
    """All sources for a stack with this OpenAPI document and model, with real files from these folders."""
    paths = ["/query", "/v1/chat/completions", "/v1/completions", "/v1/responses"]
    endpoints = [questions.Endpoint(path, model) for path in paths]
    return {
        "sampling": questions.sampling(endpoints),
        "schemas": schemas.schema_requests(endpoints),
        "conversations": questions.conversations(endpoints),
        "choices": questions.choices_beside_deletions(endpoints),
        "leaving": questions.leaving(endpoints),
        "bursts": questions.bursts(endpoints),
        "searches": questions.searches(),
        "embeddings": questions.embeddings(model),
        "surface": surface(openapi),
        "names": routes.named_things(),
        "pages": routes.pages(),
        "json": routes.deep_json(),
        "administration": routes.administration(judged_tenant),
        "documents": routes.small_documents(),
        "repeats": routes.repeated_uploads(),
        "files": file_uploads(real_files(folders)),
        "wire": wire.connections(),
    }
