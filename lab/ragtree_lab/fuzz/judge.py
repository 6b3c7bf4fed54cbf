"""The judge: another tenant, which asks known questions all the time and knows the right answers."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import httpx

from loadtest.client.answer_reader import AnswerReader
from loadtest.errors import StackNotReady
from loadtest.traffic.synthetic_corpus import SyntheticCorpus

_log = logging.getLogger(__name__)
_DOCUMENTS, _WORDS = 24, 60
_MAX_TOKENS = 12
_IDLE_ROUNDS = 3
_TIMEOUT_S = 120.0
_INGEST_S = 300.0
_NEAR = 0.5
"""Natural logarithms of probabilities that are this near may change places when other requests share the steps of an
engine that computes in 16 bits. On an idle stack the same token's differed by up to 0.18."""
_FAR_TOO_LONG, _FAR_TOO_LONG_S = 10.0, 30.0
"""An answer that takes so many times the longest of the idle stack, and so many seconds, is kept with its suspects."""
_FOREIGN_WORDS = "ledger barrels salt passing file small line"
"""Words of the stranger's documents. A search for them must find the judge's own."""


class JudgedQuestion(NamedTuple):
    """A known question and what became of it. Times in seconds. ``wrong`` says what was not right.

    ``near`` says that its text is another one from a token on that was as likely as the idle stack's.
    """

    at: float
    ttft: float | None
    total: float
    wrong: str | None
    near: bool = False


class Reply(NamedTuple):
    """What an answer consists of: its text, its tokens and their log probabilities, the documents found and cited."""

    text: str
    tokens: tuple[tuple[str, float], ...]
    found: tuple[str, ...]
    cited: tuple[str, ...]

    def is_near(self, other: "Reply") -> bool:
        """Whether the texts are the same up to a token that was about as likely in the one as in the other."""
        for (token, logprob), (others, others_logprob) in zip(self.tokens, other.tokens, strict=False):
            if abs(logprob - others_logprob) > _NEAR:
                return False
            if token != others:
                return True
        return False


class Judge:
    """Asks the stack at ``url`` with its own ``key``. ``harmed(what)`` is called for all that is not right."""

    def __init__(self, url: str, key: str, seed: int, harmed: Callable[[str], None]) -> None:
        headers = {"Authorization": f"Bearer {key}"}
        # Each question has a new connection: one that waits may be closed by the server when it is needed.
        unshared = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=_TIMEOUT_S, limits=unshared)
        self._corpus = SyntheticCorpus(_DOCUMENTS, _WORDS, seed)
        self._collection = f"judged-{seed}"
        self._inbox = f"{self._collection}-inbox"
        self._harmed = harmed
        self._held: set[str] = set()
        self._right: dict[str, list[Reply]] = {}
        self.idle: list[JudgedQuestion] = []
        self.during: list[JudgedQuestion] = []

    @property
    def questions(self) -> Sequence[str]:
        """The known questions."""
        return self._corpus.questions

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def learn(self) -> None:
        """Ingest the known documents and learn the answers of the idle stack. Raises StackNotReady."""
        path = f"/v1/collections/{self._collection}/documents:batch"
        headers = {"Content-Type": "application/x-ndjson"}
        for lines in self._corpus.batches():
            await self._ended(await self._json("POST", path, content=lines, headers=headers))
        self._held = {self._inbox, *await self._collections()}
        # The first round fills the caches; its times are not those of the rounds after it.
        for number in range(_IDLE_ROUNDS + 1):
            for question in self._corpus.questions:
                asked, reply = await self._ask(question)
                if reply is None:
                    raise StackNotReady(f"the idle stack did not answer the judge: {asked.wrong}")
                self._right.setdefault(question, []).append(reply)
                if number:
                    self.idle.append(asked)
        if unstable := sum(len({each.text for each in replies}) > 1 for replies in self._right.values()):
            _log.info("%d of %d questions have several answers on the idle stack", unstable, len(self._right))

    async def watch(self, pause_s: float) -> None:
        """Ask again and again until cancelled, with a pause after each question."""
        number = 0
        while True:
            await self.ask(self._corpus.questions[number % len(self._corpus.questions)])
            number += 1
            if number % len(self._corpus.questions) == 0:
                await self.inspect()
            await asyncio.sleep(pause_s)

    async def ask(self, question: str) -> JudgedQuestion:
        """Ask one known question, and say so if its answer is not right."""
        asked, reply = await self._ask(question)
        if reply is not None:
            asked = self._judged(question, asked, reply)
        if asked.wrong is not None:
            self._harmed(asked.wrong.partition(": ")[0])
        elif asked.total > self._far_too_long_s():
            self._harmed("an answer took far too long")
        self.during.append(asked)
        return asked

    def _far_too_long_s(self) -> float:
        longest = max((each.total for each in self.idle), default=0.0)
        return max(_FAR_TOO_LONG_S, _FAR_TOO_LONG * longest)

    async def inspect(self) -> None:
        """Look for other tenants' documents: in the lists, and in a search for their words."""
        try:
            held = await self._collections()
            found = await self._json(
                "POST", "/search", json={"query": _FOREIGN_WORDS, "collection": self._collection, "top_k": 100}
            )
            listed = await self._json("GET", f"/v1/collections/{self._collection}/documents?limit=100")
        except StackNotReady as error:
            self._harmed(f"the judge could not list: {error}")
            return
        own = {document.id for document in self._corpus.documents}
        seen = {each["document_id"] for each in found["results"]} | {each["document_id"] for each in listed["data"]}
        if others := sorted(set(held) - self._held):
            self._harmed(f"the judge's tenant has foreign collections: {others[:5]}")
        if seen - own:
            self._harmed(f"the judge sees foreign documents: {sorted(seen - own)[:5]}")
        if len(listed["data"]) != len(own):
            self._harmed(f"the judge has {len(listed['data'])} documents instead of {len(own)}")

    async def upload(self) -> float | None:
        """Upload one more document and return after how many seconds it can be found, or None if it never can."""
        begun = time.monotonic()
        try:
            path = f"/v1/collections/{self._inbox}/documents/last"
            plain = {"Content-Type": "text/plain"}
            await self._ended(await self._json("PUT", path, content=f"The last note, of {begun}.", headers=plain))
        except StackNotReady as error:
            self._harmed(f"the judge's own upload: {error}")
            return None
        return time.monotonic() - begun

    async def _collections(self) -> list[str]:
        return [each["name"] for each in (await self._json("GET", "/v1/collections"))["data"]]

    async def _ended(self, job: dict[str, Any]) -> None:
        deadline = time.monotonic() + _INGEST_S
        while job["status"] in ("queued", "in_progress"):
            if time.monotonic() > deadline:
                raise StackNotReady(f"not ingested within {_INGEST_S:g} s")
            await asyncio.sleep(0.2)
            job = await self._json("GET", f"/v1/jobs/{job['job_id']}")
        if job["failed_documents"]:
            raise StackNotReady(f"not ingested: {job['last_error']}")

    def _judged(self, question: str, asked: JudgedQuestion, reply: Reply) -> JudgedQuestion:
        right = self._right[question]
        one = right[0]
        if reply.found not in {each.found for each in right}:
            return asked._replace(wrong=f"other documents: {reply.found}, not {one.found}")
        if (reply.text, reply.cited) in {(each.text, each.cited) for each in right}:
            return asked
        if reply.text in {each.text for each in right}:
            return asked._replace(wrong=f"other citations: {reply.cited}, not {one.cited}")
        if any(map(reply.is_near, right)):
            return asked._replace(near=True)
        return asked._replace(wrong=f"another text: {reply.text!r}, not {one.text!r}")

    async def _ask(self, question: str) -> tuple[JudgedQuestion, Reply | None]:
        body = {
            "query": question,
            "collection": self._collection,
            "top_k": 2,
            "max_tokens": _MAX_TOKENS,
            "stream": True,
            "include": ["logprobs"],
        }
        begun = time.monotonic()
        reader = AnswerReader(begun, lambda _latency, _seconds: None)
        wrong = None
        try:
            async with self._http.stream("POST", "/query", json=body) as response:
                if response.status_code != httpx.codes.OK:
                    wrong = f"HTTP {response.status_code} {_code(await response.aread())}"
                else:
                    async for chunk in response.aiter_raw():
                        reader.feed(chunk, time.monotonic())
                    wrong = reader.failure()
        except httpx.HTTPError as error:
            wrong = f"no whole answer, {type(error).__name__}: {error}"
        asked = JudgedQuestion(begun, reader.ttft, time.monotonic() - begun, wrong)
        reply = Reply(reader.text, tuple(reader.tokens), tuple(reader.sources), tuple(reader.cited))
        return asked, reply if wrong is None else None

    async def _json(self, method: str, path: str, **options: Any) -> dict[str, Any]:  # noqa: ANN401 - httpx's own
        try:
            response = await self._http.request(method, path, **options)
            body: dict[str, Any] = response.raise_for_status().json()
        except (httpx.HTTPError, ValueError) as error:
            raise StackNotReady(f"{method} {path}: {error!r}") from error
        return body


def _code(content: bytes) -> str:
    try:
        return str(json.loads(content)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return content[:80].decode(errors="replace")
