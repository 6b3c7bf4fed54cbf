"""Which blocks of a prompt the tokens that are computed again attend to."""

import pytest
import torch

pytest.importorskip("vllm")

from generator.composing.partial_forward import AttendedBlocks
from generator.composing.runs import Run

PAGE = 32
FRONT = [0, 1, 2, 3]
"""The blocks of 128 tokens."""

DOCUMENTS = [Run(320, 640), Run(640, 970)]
"""The first begins block 10, the second block 20."""


def attended(share: float, *looked_at: int) -> AttendedBlocks:
    """Blocks by a question that attends to the positions ``looked_at``, the first of them most."""
    attention = torch.zeros(DOCUMENTS[-1].end)
    for weight, position in enumerate(reversed(looked_at), 1):
        attention[position] = weight
    return AttendedBlocks(attention, DOCUMENTS, share, PAGE)


def test_a_token_attends_to_the_front_to_its_document_and_to_the_blocks_that_the_question_looks_at():
    # Of the six blocks from 4 to 9, three.
    blocks = attended(0.2, 150, 250, 319).of(Run(400, 408))
    assert blocks.tolist() == [*FRONT, 150 // PAGE, 250 // PAGE, 319 // PAGE, 10, 11, 12]


def test_what_is_behind_the_document_does_not_count():
    behind = [position for block in range(20, 30) for position in [block * PAGE]]
    blocks = attended(0.2, *behind, 150, 250, 319).of(Run(400, 408))
    assert blocks.tolist() == [*FRONT, 150 // PAGE, 250 // PAGE, 319 // PAGE, 10, 11, 12]


def test_a_run_ends_with_its_own_block():
    assert attended(0.2, 150).of(Run(632, 640))[-1] == 19
    assert attended(0.2, 150).of(Run(640, 641))[-1] == 20
    assert attended(0.2, 150).of(Run(960, 970))[-1] == 30


@pytest.mark.parametrize(("share", "between"), [(0.05, 8), (0.25, 8), (0.4, 13), (0.5, 16), (1.0, 16)])
def test_the_more_is_computed_again_the_more_it_attends_to(share, between):
    blocks = attended(share, 150).of(Run(640, 648)).tolist()
    assert len(blocks) == len(FRONT) + between + 1
    assert blocks == sorted(set(blocks))


def test_a_run_that_no_document_holds_attends_to_everything():
    all_blocks = attended(0.2, 150)
    assert all_blocks.of(Run(636, 648)).tolist() == list(range(21))
    assert all_blocks.of(Run(100, 330)).tolist() == list(range(11))


def test_a_document_within_the_front_attends_to_all_of_it():
    few = AttendedBlocks(torch.zeros(100), [Run(20, 60), Run(60, 100)], 0.1, PAGE)
    assert few.of(Run(24, 32)).tolist() == [0]
    assert few.of(Run(96, 100)).tolist() == [0, 1, 2, 3]
