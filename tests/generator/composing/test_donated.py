"""Documents' KV is moved token by token, alone or with others."""

import pytest
import torch

pytest.importorskip("vllm")

from generator.composing import donated
from generator.composing.donated import Donated, joined_pages, moved_together, moves_of
from generator.composing.runs import Run, positions_of

PAGE = 4
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def document(position: int, place: Run) -> Donated:
    """A document whose pages have a byte for each token: its position in its own prompt, or 0 if it is not its."""
    first, end = position // PAGE, -(-(position + place.tokens) // PAGE)
    positions = torch.arange(first * PAGE, end * PAGE)
    own = (positions >= position) & (positions < position + place.tokens)
    return Donated(position, place, (positions * own).to(torch.uint8).view(-1, PAGE))


DOCUMENTS = [document(3, Run(10, 16)), document(8, Run(16, 21)), document(30, Run(21, 22))]


@pytest.mark.parametrize("group", [DOCUMENTS[:1], DOCUMENTS[1:2], DOCUMENTS[:2], DOCUMENTS])
def test_each_token_of_a_group_comes_to_its_place(group):
    tokens, by = moves_of(group, PAGE, CPU)
    own = joined_pages(group, CPU).flatten()[tokens]
    assert (own + by).tolist() == positions_of([one.place for one in group], CPU).tolist()


def test_a_cpu_moves_documents_one_by_one():
    assert list(moved_together(DOCUMENTS, CPU)) == [[one] for one in DOCUMENTS]


def test_a_gpu_moves_as_many_at_once_as_there_is_room_for(monkeypatch):
    assert list(moved_together(DOCUMENTS, GPU)) == [DOCUMENTS]
    monkeypatch.setattr(donated, "_MOVED_AT_ONCE_BYTES", sum(one.pages.nbytes for one in DOCUMENTS[:2]))
    assert list(moved_together(DOCUMENTS, GPU)) == [DOCUMENTS[:2], DOCUMENTS[2:]]
    monkeypatch.setattr(donated, "_MOVED_AT_ONCE_BYTES", 1)
    assert list(moved_together(DOCUMENTS, GPU)) == [[one] for one in DOCUMENTS]
    assert list(moved_together([], GPU)) == []
