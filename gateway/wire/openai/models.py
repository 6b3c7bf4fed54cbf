"""The served models in OpenAI's format."""

from typing import Literal

import msgspec


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The served model in OpenAI's format. ``max_model_len`` bounds prompt and answer together, in tokens."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "ragtree"
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The list of served models, which has one entry."""

    object: Literal["list"] = "list"
    data: tuple[Model, ...]
