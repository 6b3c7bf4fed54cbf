"""A retriever, a query engine and a chat engine over RAGTree, in LlamaIndex's shape.

``python examples/llamaindex_shape.py "What did we decide?"`` asks the stack at ``RAGTREE_URL``. LlamaIndex is not
needed. examples/README.md says how to use the retriever within it.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import httpx
import openai


@dataclass(frozen=True)
class TextNode:
    """A passage: fields of LlamaIndex's class of this name."""

    id_: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)

    def get_content(self) -> str:
        """Return the text."""
        return self.text


@dataclass(frozen=True)
class NodeWithScore:
    """A passage with its score in a search."""

    node: TextNode
    score: float


@dataclass(frozen=True)
class Response:
    """An answer with the passages that it rests on. ``metadata`` has the usage, for a query."""

    response: str
    source_nodes: list[NodeWithScore] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)


NodeT = TypeVar("NodeT")
FoundT = TypeVar("FoundT")


class RagtreeRetriever(Generic[NodeT, FoundT]):
    """Finds passages. ``node`` and ``found`` make them, and may be LlamaIndex's own classes."""

    def __init__(
        self,
        client: httpx.Client,
        node: Callable[..., NodeT],
        found: Callable[..., FoundT],
        collection: str = "default",
        similarity_top_k: int = 4,
    ) -> None:
        self._client = client
        self._node = node
        self._found = found
        self._collection = collection
        self._top_k = similarity_top_k

    def retrieve(self, query: str) -> list[FoundT]:
        """Return the passages, best first. Raises httpx.HTTPStatusError."""
        body = {"query": query, "collection": self._collection, "top_k": self._top_k}
        found = self._client.post("/v1/search", json=body).raise_for_status().json()
        return [self._found(node=self._node(**fields_of(result)), score=result["score"]) for result in found["results"]]


class RagtreeQueryEngine:
    """Answers single questions, with the passages that each answer rests on."""

    def __init__(self, client: httpx.Client, collection: str = "default") -> None:
        self._client = client
        self._collection = collection

    def query(self, question: str) -> Response:
        """Return the answer. Raises httpx.HTTPStatusError."""
        body = {"query": question, "collection": self._collection, "include": ["results.text"]}
        reply = self._client.post("/v1/query", json=body).raise_for_status().json()
        cited = [reply["results"][passage["index"]] for passage in reply["cited"]]
        sources = [NodeWithScore(TextNode(**fields_of(result)), result["score"]) for result in cited]
        return Response(reply["output_text"], sources, {"usage": reply["usage"]})


class RagtreeChatEngine:
    """Holds a conversation about the documents of a collection."""

    def __init__(self, client: openai.OpenAI, collection: str = "default") -> None:
        self._client = client
        self._model = client.models.list().data[0].id
        self._fields = {"collection": collection}
        self._history: list[dict[str, str]] = []

    def chat(self, message: str) -> Response:
        """Return the answer to the next message. Raises openai.APIError."""
        turns: Any = [*self._history, {"role": "user", "content": message}]
        completion = self._client.chat.completions.create(model=self._model, messages=turns, extra_body=self._fields)
        answer = completion.choices[0].message.content or ""
        self._history = [*turns, {"role": "assistant", "content": answer}]
        return Response(answer)

    def reset(self) -> None:
        """Forget the conversation."""
        self._history = []


def fields_of(result: dict[str, Any]) -> dict[str, Any]:
    """The fields of a node, from a result of RAGTree."""
    where = {key: result[key] for key in ("url", "title", "lines", "pages")}
    return {"id_": result["chunk_id"], "text": result["text"], "metadata": {**result["attributes"], **where}}


def main(question: str, url: str) -> None:
    """Print the passages and the answer, with what it rests on."""
    with httpx.Client(base_url=url, timeout=60) as http:
        for found in RagtreeRetriever(http, TextNode, NodeWithScore).retrieve(question):
            print(f"- {found.score:.3f} {found.node.metadata['url']}: {found.node.get_content()}")
        answer = RagtreeQueryEngine(http).query(question)
        print(answer.response, [found.node.metadata["url"] for found in answer.source_nodes])
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        print(RagtreeChatEngine(client).chat(question).response)


if __name__ == "__main__":
    main(sys.argv[1], os.environ.get("RAGTREE_URL", "http://127.0.0.1:8080"))
