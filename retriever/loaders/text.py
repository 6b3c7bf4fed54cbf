"""The loader of plain text."""

from retriever.loaders.base import LoadedText, decode


def load_text(content: bytes) -> LoadedText:
    """Plain text as it stands; it names no title."""
    return LoadedText(None, decode(content))
