"""Documents' KV is moved token by token, alone or with others."""

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")

from generator.composing import composer
from generator.composing.composer import Donated, joined_pages, moved_together, moves_of
from generator.composing.runs import Run, positions_of
from generator.connector.blocks.staged_pages import HostStagedPages, StagedRows

PAGE = 4
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def documents(*moves: tuple[int, Run]) -> list[Donated]:
    """Documents at positions of their own prompts, and their places.

    Their pages have a byte for each token: its position in its own prompt, or 0 if it is not the document's.
    """
    spans = [range(position // PAGE, -(-(position + place.tokens) // PAGE)) for position, place in moves]
    pages = np.zeros((sum(map(len, spans)), PAGE), np.uint8)
    staged = HostStagedPages(lambda: pages, lambda _block, _page: None)
    found, row = [], 0
    for (position, place), span in zip(moves, spans, strict=True):
        numbers = range(row, row := row + len(span))
        own = np.arange(position, position + place.tokens)
        pages[numbers.start : numbers.stop].reshape(-1)[own - span.start * PAGE] = own
        found.append(Donated(position, place, StagedRows(staged, numbers)))
    return found


DOCUMENTS = documents((3, Run(10, 16)), (8, Run(16, 21)), (30, Run(21, 22)))


@pytest.mark.parametrize(
    "group", [DOCUMENTS[:1], DOCUMENTS[1:2], DOCUMENTS[:2], DOCUMENTS, [DOCUMENTS[0], DOCUMENTS[2]]]
)
def test_each_token_of_a_group_comes_to_its_place(group):
    tokens, by = moves_of(group, PAGE, CPU)
    own = joined_pages(group, CPU).flatten()[tokens]
    assert (own + by).tolist() == positions_of([one.place for one in group], CPU).tolist()


def test_a_cpu_moves_documents_one_by_one():
    assert list(moved_together(DOCUMENTS, CPU)) == [[one] for one in DOCUMENTS]


def test_a_gpu_moves_as_many_at_once_as_there_is_room_for(monkeypatch):
    assert list(moved_together(DOCUMENTS, GPU)) == [DOCUMENTS]
    monkeypatch.setattr(composer, "_MOVED_AT_ONCE_BYTES", sum(one.nbytes for one in DOCUMENTS[:2]))
    assert list(moved_together(DOCUMENTS, GPU)) == [DOCUMENTS[:2], DOCUMENTS[2:]]
    monkeypatch.setattr(composer, "_MOVED_AT_ONCE_BYTES", 1)
    assert list(moved_together(DOCUMENTS, GPU)) == [[one] for one in DOCUMENTS]
    assert list(moved_together([], GPU)) == []
