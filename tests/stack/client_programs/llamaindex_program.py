"""Uses a stack through LlamaIndex's own classes, and prints what they return. Arguments: URL, collection, embedder."""

import asyncio
import json
import sys
from typing import Any

import httpx
import openai
from llama_index.core import Document, Settings, VectorStoreIndex
from llama_index.core.chat_engine import ContextChatEngine
from llama_index.core.llms import ChatMessage
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

from examples.llamaindex_shape import RagtreeChatEngine, RagtreeRetriever

URL, COLLECTION, EMBEDDER = sys.argv[1:]
ASKED = "What is the capital of Freedonia?"
MODEL = httpx.get(f"{URL}/v1/models").json()["data"][0]["id"]


class Ragtree(BaseRetriever):
    """The retriever of examples/README.md."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        with httpx.Client(base_url=URL) as client:
            return RagtreeRetriever(client, TextNode, NodeWithScore, COLLECTION).retrieve(query_bundle.query_str)


def main() -> None:
    ours: dict[str, Any] = {"api_base": f"{URL}/v1", "api_key": "none", "max_retries": 0, "timeout": 60}
    llm = OpenAILike(
        model=MODEL,
        is_chat_model=True,
        max_tokens=12,
        additional_kwargs={"extra_body": {"collection": COLLECTION}},
        **ours,
    )
    Settings.llm = llm
    Settings.embed_model = OpenAILikeEmbedding(model_name=EMBEDDER, **ours)
    asked = [ChatMessage(role="user", content=ASKED)]
    retriever = Ragtree()
    chat_engine = ContextChatEngine.from_defaults(retriever=retriever, llm=llm)
    index = VectorStoreIndex.from_documents([Document(text="The lake is deep."), Document(text="Peanuts are brown.")])
    queried = RetrieverQueryEngine.from_args(retriever, llm=llm).query(ASKED)
    print(
        json.dumps(
            {
                "answer": llm.chat(asked).message.content,
                "completion": llm.complete(ASKED).text,
                "streamed": "".join(part.delta or "" for part in llm.stream_chat(asked)),
                "asynchronous": asyncio.run(llm.achat(asked)).message.content,
                "queried": queried.response,
                "sources": [found.node.metadata["url"] for found in queried.source_nodes],
                "chatted": [chat_engine.chat(text).response for text in (ASKED, "And its lake?")],
                "example": RagtreeChatEngine(openai.OpenAI(base_url=f"{URL}/v1", api_key="none"), COLLECTION)
                .chat(ASKED)
                .response,
                "found": [found.node.metadata["url"] for found in retriever.retrieve(ASKED)],
                "nearest": index.as_retriever(similarity_top_k=1).retrieve("Is the lake deep?")[0].node.get_content(),
            }
        )
    )


main()
