"""The tokenizer for embedders without their own: a token is a word, a piece of a long word, or a mark."""

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

_TOKEN = r"\w{1,16}|[^\w\s]"  # noqa: S105  # nosec B105  # a pattern


def word_tokenizer() -> Tokenizer:
    """Create a tokenizer without a vocabulary. Its tokens carry only offsets."""
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))  # noqa: S106  # nosec B106  # a word
    # "removed" with invert keeps the matches and drops the rest.
    tokenizer.pre_tokenizer = Split(Regex(_TOKEN), behavior="removed", invert=True)
    return tokenizer
