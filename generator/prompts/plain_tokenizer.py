"""A model's tokenizer that makes no control token, whatever the text.

``encode_special_tokens`` of the tokenizers library is not enough for that. It covers only the added tokens that are
flagged ``special``. The others, such as ``<think>``, are found in any text, if need be after its normalisation. And
both kinds may be entries of the vocabulary, to which the model's own merges or scores lead.

So each added token gets a secret name, wherever the tokenizer's file has the old one. Ids stay as they are, but no text
has that name, and the model cuts the old one as it cuts any text.
"""

import re
import secrets
from collections.abc import Container, Iterator, Mapping
from typing import Any

import msgspec
from tokenizers import Tokenizer

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_SPACE = "\u2581"
"""What a space is in vocabularies of SentencePiece."""


def plain_tokenizer(content: bytes) -> Tokenizer:
    """The tokenizer in a ``tokenizer.json``, for which control tokens are ordinary text.

    Added tokens that control nothing stay as they are: runs of whitespace, and the bytes that unknown characters fall
    back to. An unknown character still becomes the unknown token, but the text of that token does not. Raises what the
    library and msgspec raise if this is no tokenizer.
    """
    file: dict[str, Any] = msgspec.json.decode(content)
    model: dict[str, Any] = file["model"]
    tokens = [token for token in file.get("added_tokens") or () if not _falls_back(token["content"], model)]
    renamed = {token["content"]: secrets.token_hex(16) for token in tokens if not _is_space(token)}
    # The new names are not normalised: a normalizer could shorten them to something that a text has.
    file["added_tokens"] = [
        token | {"content": renamed[token["content"]], "normalized": False} if token["content"] in renamed else token
        for token in tokens
    ]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {renamed.get(piece, piece): number for piece, number in model["vocab"].items()}
    else:
        model["vocab"] = [[renamed.get(piece, piece), score] for piece, score in model["vocab"]]
    if "merges" in model:
        model["merges"] = list(_merges_without(renamed, model))
    if model.get("unk_token"):
        model["unk_token"] = renamed.get(model["unk_token"], model["unk_token"])
    return Tokenizer.from_str(msgspec.json.encode(file).decode())


def _falls_back(token: str, model: Mapping[str, Any]) -> bool:
    return bool(model.get("byte_fallback")) and _BYTE.fullmatch(token) is not None


def _is_space(token: Mapping[str, Any]) -> bool:
    return not token["special"] and not token["content"].replace(_SPACE, " ").strip()


def _merges_without(tokens: Container[str], model: Mapping[str, Any]) -> Iterator[list[str]]:
    """The merges that neither lead to one of the tokens nor begin with one."""
    prefix = len(model.get("continuing_subword_prefix") or "")
    for merge in model["merges"]:
        # Older files have a merge as one text.
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        if left not in tokens and right not in tokens and left + right[prefix:] not in tokens:
            yield [left, right]
