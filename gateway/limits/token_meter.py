"""The tokens of one query, and when they are charged."""

from collections.abc import Callable


class TokenMeter:
    """Counts a query's tokens and passes them to ``charge``: a prompt's at its hand-over, all others at the end.

    A client that leaves before the first token has thus paid for its prompt. All attempts at an answer count as one
    prompt, the longest: guesses and retries are the stack's own choice or fault. With ``prompt_paid``, the prompt is
    another query's, whose KV this one finds.
    """

    def __init__(self, charge: Callable[[int], None], *, prompt_paid: bool) -> None:
        self._charge = charge
        self._prompt_paid = prompt_paid
        self._prompt = self._rewriting = 0
        self._generated = 0
        self._charged = 0

    def began(self, prompt_tokens: int) -> None:
        """Charge for the prompt of an attempt, which is handed to the engine now."""
        if not self._prompt_paid:
            self._prompt = max(self._prompt, prompt_tokens)
            self._charge_rest(self._prompt + self._rewriting)

    def began_rewriting(self, prompt_tokens: int) -> None:
        """Charge for the prompt that has the question rewritten, which is handed to the engine now."""
        self._rewriting = prompt_tokens
        self._charge_rest(self._rewriting)

    def generated(self, tokens: int) -> None:
        """Count tokens of the answer, or of a rewriting."""
        self._generated += tokens

    def ended(self) -> None:
        """Charge for what has not been charged yet."""
        self._charge_rest(self._prompt + self._rewriting + self._generated)

    def _charge_rest(self, tokens: int) -> None:
        if tokens > self._charged:
            self._charge(tokens - self._charged)
            self._charged = tokens
