"""Where an engine's KV cache has the tokens of a sequence."""

import torch


def slots_of(positions: torch.Tensor, blocks: torch.Tensor, page_tokens: int) -> torch.Tensor:
    """The slots of tokens at ``positions`` of a sequence in ``blocks``, each of which has ``page_tokens`` slots."""
    return blocks[positions // page_tokens].long() * page_tokens + positions % page_tokens
