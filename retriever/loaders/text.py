"""The plain text loader."""

from retriever.loaders.base import LoadedText, decode


def load_text(content: bytes) -> LoadedText:
    """Return the text unchanged, without a title."""
    return LoadedText(None, decode(content))
