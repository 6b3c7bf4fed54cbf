"""A model's chat template: renders a conversation to the text that the model was trained to continue."""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from protocol.errors import ConfigError
from protocol.prompts import ChatMessage

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""For models without a chat template."""


class TemplateRefusal(Exception):
    """The chat template cannot express a conversation."""


class ChatTemplate:
    """The chat template in a model folder. Raises ConfigError if it does not compile."""

    def __init__(self, folder: Path) -> None:
        self._variables = _special_tokens(folder)
        try:
            self._template = _environment().from_string(_source(folder))
        except TemplateSyntaxError as error:
            raise ConfigError(f"the chat template of {folder} does not compile: {error}", "generator.model") from error

    @property
    def end(self) -> str:
        """The control token that ends an answer; empty if the folder names none."""
        return self._variables["eos_token"]

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """The conversation as text, up to the start of the model's answer.

        Raises TemplateRefusal if the template does not accept these roles in this order.
        """
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return self._template.render(messages=turns, add_generation_prompt=True, **self._variables)
        except TemplateError as error:
            raise TemplateRefusal(str(error)) from error


def _environment() -> ImmutableSandboxedEnvironment:
    # Hugging Face's chat templates are written for these settings.
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
        # Older files store a token as an object.
        tokens[name] = token["content"] if isinstance(token, dict) else token or ""
    return tokens


def _source(folder: Path) -> str:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = _read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):  # several named templates
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return template or PLAIN_TEMPLATE
