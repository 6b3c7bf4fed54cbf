"""A model's tokenizer, without the model.

It is read from the model folder with the ``tokenizers`` library. The tokenizers of transformers would import torch, 400
MB that a process without a model does not need.
"""

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from generator.prompts.chat_template import ChatTemplate
from generator.prompts.plain_tokenizer import plain_tokenizer
from protocol.errors import ConfigError


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

    def decode_stream(self) -> "TextStream":
        """A decoder for one answer, token by token."""
        return TextStream(self._template_tokenizer)


class TextStream:
    """Decodes a growing list of token ids. Holds back bytes until their character is complete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def push(self, token_id: int) -> str:
        """The text that this token completes, possibly empty."""
        return self._stream.step(self._tokenizer, token_id) or ""


def _ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    # Of the library's calls, this one lets other threads run meanwhile, and takes no time for what is not asked for.
    (encoded,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    return tuple(encoded.ids)
