"""The tokenizer for embedders that bring none: a token is a word, a piece of a long word, or a mark."""

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

_TOKEN = r"\w{1,16}|[^\w\s]"  # noqa: S105  # nosec B105  # a pattern


def word_tokenizer() -> Tokenizer:
    """A tokenizer that knows no word, and so says of each only where it stands."""
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))  # noqa: S106  # nosec B106  # a word
    # "Removed" and inverted: what does not match is dropped, and what matches is kept.
    tokenizer.pre_tokenizer = Split(Regex(_TOKEN), behavior="removed", invert=True)
    return tokenizer
