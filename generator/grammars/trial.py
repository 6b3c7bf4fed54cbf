"""Tries a schema as the engine will use it: converts and compiles it, and masks the tokens of some answers."""

import json
import re
import time
from random import Random

import numpy as np
import numpy.typing as npt
import xgrammar

from generator.grammars.messages import PLACE_IN_SOURCE, Vocabulary

_WALKS = 3
_WALK_TOKENS = 64
_STRUCTURE = re.compile(rb'[\s"{}\[\],:]*["{}\[\],:][\s"{}\[\],:]*')
"""Tokens that begin or end parts of JSON. Answers of random tokens alone would never leave their first string."""
_LONGEST_MESSAGE = 500

Mask = npt.NDArray[np.int32]


class SchemaRefused(Exception):
    """The schema cannot be used. The message says why, without naming the schema."""


class Trial:
    """Tries schemas with the tokens of one engine."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._info = xgrammar.TokenizerInfo.deserialize_json(vocabulary.tokenizer_info)
        self._vocabulary = vocabulary
        decoded = self._info.decoded_vocab
        self._structure = _mask_of([token for token, text in enumerate(decoded) if _STRUCTURE.fullmatch(text)], decoded)
        self._stops = _mask_of(self._info.stop_token_ids, decoded)

    def run(self, schema: str, mask_s: float) -> int:
        """Return the bytes of the compiled grammar. Raises SchemaRefused, and MemoryError at the limit.

        A mask may take ``mask_s`` of processor time. Does not return if the schema overruns another limit of this
        process.
        """
        try:
            compiled = self._compiled(schema)
        except MemoryError:
            raise
        except Exception as error:
            # Exceptions of native code arrive as a RuntimeError.
            if "bad_alloc" in str(error):
                raise MemoryError from error
            raise SchemaRefused(PLACE_IN_SOURCE.sub("", str(error)).strip()[:_LONGEST_MESSAGE]) from error
        random = Random(schema)  # noqa: S311  # nosec B311  # the same schema has the same verdict everywhere
        for _ in range(_WALKS):
            self._walk(compiled, random, mask_s)
        return compiled.memory_size_bytes

    def _compiled(self, schema: str) -> xgrammar.CompiledGrammar:
        # vLLM converts a schema once more when it validates the request.
        xgrammar.Grammar.from_json_schema(json.loads(schema))
        # On this thread, whose stack is limited, and whose processor time is that of the compilation.
        compiler = xgrammar.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)
        return compiler.compile_json_schema(
            schema, any_whitespace=self._vocabulary.any_whitespace, separators=self._vocabulary.separators
        )

    def _walk(self, compiled: xgrammar.CompiledGrammar, random: Random, mask_s: float) -> None:
        """Follow one random answer. Every other token is one of structure, where there is one."""
        matcher = xgrammar.GrammarMatcher(compiled)
        mask = np.empty((1, len(self._stops)), dtype=np.int32)
        for position in range(_WALK_TOKENS):
            began = time.thread_time()
            matcher.fill_next_token_bitmask(mask, 0)
            if time.thread_time() - began > mask_s:
                raise SchemaRefused(
                    f"answers that follow it are too slow: a token takes more than {mask_s * 1000:g} ms"
                )
            if not position and not mask.any():
                raise SchemaRefused("no answer can follow it")
            token = self._draw(mask[0] & ~self._stops, random)
            if token is None or not matcher.accept_token(token):
                return

    def _draw(self, allowed: Mask, random: Random) -> int | None:
        structure = allowed & self._structure
        words = structure if random.random() < 0.5 and structure.any() else allowed
        (filled,) = np.nonzero(words)
        if not len(filled):
            return None
        word = int(random.choice(filled))
        bits = int(words[word]) & 0xFFFFFFFF
        return 32 * word + random.choice([bit for bit in range(32) if bits >> bit & 1])


def _mask_of(tokens: list[int], vocabulary: list[bytes]) -> Mask:
    """The bit mask of these tokens, as xgrammar orders the bits."""
    flags = np.zeros(-(-len(vocabulary) // 32) * 32, dtype=np.uint8)
    flags[tokens] = 1
    return np.packbits(flags, bitorder="little").view("<i4").astype(np.int32)
