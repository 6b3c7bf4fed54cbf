"""A text, to be asked which names stand in it."""

from retriever.graph.names import words_of


class NamedText:
    """The words of a text. A name stands in it if the words of the name's key do, one after another."""

    def __init__(self, text: str) -> None:
        self._words = f" {' '.join(words_of(text))} "

    def has(self, *keys: str) -> bool:
        """Whether the names with these keys all stand in the text. The empty key stands nowhere."""
        return all(key and f" {key} " in self._words for key in keys)
