"""A model's tokenizer, without the model.

It is read from the model folder with the ``tokenizers`` library. The tokenizers of transformers would import torch, 400
MB that a process without a model does not need.

Text from outside makes no control token. ``encode_special_tokens`` of the tokenizers library is not enough for that. It
covers only the added tokens that are flagged ``special``. The others, such as ``<think>``, are found in any text, if
need be after its normalisation. And both kinds may be entries of the vocabulary, to which the model's own merges or
scores lead. So each added token gets a secret name, wherever the tokenizer's file has the old one. Ids stay as they
are, but no text has that name, and the model cuts the old one as it cuts any text.
"""

import re
import secrets
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from generator.prompts.chat_template import ChatTemplate
from protocol.errors import ConfigError

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


class ModelTokenizer:
    """Converts text to token ids and back. ``chat_template`` is the chat template in the same folder.

    Raises ConfigError if the folder has no readable ``tokenizer.json`` or its chat template does not compile.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"model folder {folder} has no tokenizer.json", param="generator.model")
        # One tokenizer reads control tokens such as <|im_end|> in the chat template's own text. The other reads them in
        # foreign text as plain characters, so that no document can end its turn and speak as the system.
        try:
            content = path.read_bytes()
            self._template_tokenizer = Tokenizer.from_str(content.decode())
            self._plain_tokenizer = plain_tokenizer(content)
        except Exception as error:  # the library raises nothing more specific
            raise ConfigError(f"{path} cannot be read as a tokenizer: {error}", param="generator.model") from error
        for tokenizer in (self._template_tokenizer, self._plain_tokenizer):
            tokenizer.no_truncation()
            tokenizer.no_padding()
        self.chat_template = ChatTemplate(folder)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of foreign text. Control tokens in it become plain characters."""
        return _ids(self._plain_tokenizer, text)

    def encode_template(self, text: str) -> tuple[int, ...]:
        """Token ids of a chat template's own text, including control tokens."""
        return _ids(self._template_tokenizer, text)

    @property
    def control_tokens(self) -> list[str]:
        """The texts of the control tokens, and of all others added to the vocabulary, in the order of their ids."""
        return [token.content for _, token in sorted(self._template_tokenizer.get_added_tokens_decoder().items())]

    def decode_stream(self) -> Callable[[int], str]:
        """A decoder for one answer: it takes each token, and returns the text that the token completes, maybe none.

        Bytes are held back until their character is complete.
        """
        stream = DecodeStream(skip_special_tokens=True)
        return lambda token_id: stream.step(self._template_tokenizer, token_id) or ""


def _ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    # Of the library's calls, this one lets other threads run meanwhile, and takes no time for what is not asked for.
    (encoded,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    return tuple(encoded.ids)
