"""Uses a stack through LangChain's own classes, and prints what they return. Arguments: URL, collection, embedder."""

import asyncio
import json
import sys
from typing import Any

import httpx
import openai
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

from examples.langchain_shape import RagtreeChat, RagtreeRetriever

URL, COLLECTION, EMBEDDER = sys.argv[1:]
ASKED = "What is the capital of Freedonia?"
MODEL = httpx.get(f"{URL}/v1/models").json()["data"][0]["id"]
OURS: dict[str, Any] = {"base_url": f"{URL}/v1", "api_key": "none", "max_retries": 0, "timeout": 60}


class Ragtree(BaseRetriever):
    """The retriever of examples/README.md."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        with httpx.Client(base_url=URL) as client:
            return RagtreeRetriever(client, Document, COLLECTION).invoke(query)


def main() -> None:
    chat = ChatOpenAI(model=MODEL, max_tokens=12, extra_body={"collection": COLLECTION}, **OURS)
    asked = [("system", "Be brief."), ("human", ASKED)]
    answer = chat.invoke(asked)
    parts = list(chat.stream(asked))
    whole = parts[0]
    for part in parts[1:]:
        whole += part
    retriever = Ragtree()
    prompt = ChatPromptTemplate.from_messages([("system", "Use this: {context}"), ("human", "{question}")])
    chain = prompt | chat | StrOutputParser()
    context = "\n".join(document.page_content for document in retriever.invoke(ASKED))
    responses = ChatOpenAI(model=MODEL, max_tokens=12, use_responses_api=True, **OURS)
    embeddings = OpenAIEmbeddings(model=EMBEDDER, check_embedding_ctx_length=False, **OURS)
    store = InMemoryVectorStore.from_texts(["The lake is deep.", "Peanuts are brown."], embeddings)
    print(
        json.dumps(
            {
                "answer": answer.content,
                "finish_reason": answer.response_metadata["finish_reason"],
                "usage": answer.usage_metadata,
                "streamed": whole.content,
                "parts": len(parts),
                "asynchronous": asyncio.run(chat.ainvoke(asked)).content,
                "batch": [reply.content for reply in chat.batch([asked, asked])],
                "example": RagtreeChat(openai.OpenAI(**OURS), COLLECTION).invoke([("human", ASKED)]).content,
                "chain": chain.invoke({"context": context, "question": ASKED}),
                "found": [document.metadata["source"] for document in retriever.invoke(ASKED)],
                "response": responses.invoke(ASKED).text,
                "response_streamed": "".join(part.text for part in responses.stream(ASKED)),
                "completion": OpenAI(model=MODEL, max_tokens=12, **OURS).invoke(ASKED),
                "nearest": store.similarity_search("Is the lake deep?", k=1)[0].page_content,
            }
        )
    )


main()
