"""A retriever and a chat model over RAGTree, in LangChain's shape: ``invoke`` and ``stream``.

``python examples/langchain_shape.py "What did we decide?"`` asks the stack at ``RAGTREE_URL``. LangChain is not needed.
examples/README.md says how to use the retriever within it.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import httpx
import openai

ROLES = {"human": "user", "ai": "assistant", "system": "system"}
"""OpenAI's names of LangChain's roles."""


@dataclass(frozen=True)
class Document:
    """A passage: the fields of LangChain's class of this name."""

    page_content: str
    metadata: dict[str, Any] = field(default_factory=dict)
    id: str | None = None


@dataclass(frozen=True)
class AIMessage:
    """An answer, or a part of one. ``response_metadata`` has its citations."""

    content: str
    response_metadata: dict[str, Any] = field(default_factory=dict)


DocumentT = TypeVar("DocumentT")


class RagtreeRetriever(Generic[DocumentT]):
    """Finds passages. ``document`` makes each of them, and may be LangChain's own class."""

    def __init__(
        self,
        client: httpx.Client,
        document: Callable[..., DocumentT],
        collection: str = "default",
        top_k: int = 4,
    ) -> None:
        self._client = client
        self._document = document
        self._collection = collection
        self._top_k = top_k

    def invoke(self, query: str) -> list[DocumentT]:
        """Return the passages, best first. Raises httpx.HTTPStatusError."""
        body = {"query": query, "collection": self._collection, "top_k": self._top_k}
        found = self._client.post("/v1/search", json=body).raise_for_status().json()
        return [
            self._document(
                page_content=result["text"],
                metadata={
                    **result["attributes"],
                    "source": result["url"],
                    "title": result["title"],
                    "lines": result["lines"],
                    "pages": result["pages"],
                    "score": result["score"],
                },
                id=result["chunk_id"],
            )
            for result in found["results"]
        ]


class RagtreeChat:
    """A chat model that answers from the documents of a collection. Messages are (role, text) pairs."""

    def __init__(self, client: openai.OpenAI, collection: str = "default") -> None:
        self._client = client
        self._model = client.models.list().data[0].id
        self._fields = {"collection": collection}

    def invoke(self, messages: Sequence[tuple[str, str]]) -> AIMessage:
        """Return the answer to the last human message. Raises openai.APIError."""
        completion = self._client.chat.completions.create(
            model=self._model, messages=self._turns(messages), extra_body=self._fields
        )
        return AIMessage(
            completion.choices[0].message.content or "", {"citations": (completion.model_extra or {})["citations"]}
        )

    def stream(self, messages: Sequence[tuple[str, str]]) -> Iterator[AIMessage]:
        """Yield the answer in parts."""
        chunks = self._client.chat.completions.create(
            model=self._model, messages=self._turns(messages), extra_body=self._fields, stream=True
        )
        for chunk in chunks:
            if chunk.choices and chunk.choices[0].delta.content:
                yield AIMessage(chunk.choices[0].delta.content)

    def _turns(self, messages: Sequence[tuple[str, str]]) -> Any:  # noqa: ANN401 - OpenAI's is a union of nine types
        return [{"role": ROLES[role], "content": text} for role, text in messages]


def main(question: str, url: str) -> None:
    """Print the passages, and stream the answer."""
    with httpx.Client(base_url=url, timeout=60) as http:
        for document in RagtreeRetriever(http, Document).invoke(question):
            print(f"- {document.metadata['source']}: {document.page_content}")
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        for part in RagtreeChat(client).stream([("human", question)]):
            print(part.content, end="", flush=True)
    print()


if __name__ == "__main__":
    main(sys.argv[1], os.environ.get("RAGTREE_URL", "http://127.0.0.1:8080"))
