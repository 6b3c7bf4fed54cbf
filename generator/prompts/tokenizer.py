"""A model's tokenizer and chat template, without the model.

Read straight from the model folder with the ``tokenizers`` library: importing transformers' tokenizers pulls in torch,
400 MB that a process without a model has no use for.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from protocol.errors import ConfigError
from protocol.prompts import ChatMessage

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""For models that come without a chat template."""


class ModelTokenizer:
    """Text to token ids and back, and conversations to the text that a model was trained to continue.

    Raises ConfigError when the folder has no readable ``tokenizer.json`` or its template does not compile.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"model folder {folder} has no tokenizer.json", param="generator.model")
        # One tokenizer reads control tokens such as <|im_end|> in the template's own text; the other reads them in
        # foreign text as plain characters, so that no document can end its turn and speak as the system.
        self._template_tokenizer = _tokenizer(path)
        self._plain_tokenizer = _tokenizer(path)
        self._plain_tokenizer.encode_special_tokens = True
        for tokenizer in (self._template_tokenizer, self._plain_tokenizer):
            tokenizer.no_truncation()
            tokenizer.no_padding()
        self._template_variables = _special_tokens(folder)
        try:
            self._template = _environment().from_string(_chat_template(folder))
        except TemplateSyntaxError as error:
            raise ConfigError(f"the chat template of {folder} does not compile: {error}", "generator.model") from error

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of foreign text; control tokens in it are plain characters."""
        return tuple(self._plain_tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_template(self, text: str) -> tuple[int, ...]:
        """Token ids of a template's own text, control tokens included."""
        return tuple(self._template_tokenizer.encode(text, add_special_tokens=False).ids)

    def decode_stream(self) -> "TextStream":
        """A decoder of one answer, token by token."""
        return TextStream(self._plain_tokenizer)

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """The conversation as text, up to where the model's answer begins.

        Raises TemplateRefusal when the template does not take these roles in this order.
        """
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return self._template.render(messages=turns, add_generation_prompt=True, **self._template_variables)
        except TemplateError as error:
            raise TemplateRefusal(str(error)) from error


class TemplateRefusal(Exception):
    """A chat template's word that it cannot express a conversation."""


class TextStream:
    """The text of a growing list of token ids; holds back bytes until their character is complete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def push(self, token_id: int) -> str:
        """The text that this token completes, possibly none."""
        return self._stream.step(self._tokenizer, token_id) or ""


def _tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more specific
        raise ConfigError(f"{path} cannot be read as a tokenizer: {error}", param="generator.model") from error


def _environment() -> ImmutableSandboxedEnvironment:
    # The dialect that Hugging Face's chat templates are written in.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    return environment


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}


def _special_tokens(folder: Path) -> dict[str, str]:
    config = _read_json(folder / "tokenizer_config.json")
    tokens = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        token = config.get(name)
        # Older files spell a token out as an object.
        tokens[name] = token["content"] if isinstance(token, dict) else token or ""
    return tokens


def _chat_template(folder: Path) -> str:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = _read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):  # several named ones
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return template or PLAIN_TEMPLATE
