"""What a backend is told about runs of tokens, read by one that notes which positions are attended to."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("vllm")

from vllm.config import VllmConfig

from generator.composing.partial_forward import AttendedBlocks, PartialForward
from generator.composing.runs import Run

PAGE = 32
DOCUMENTS = [Run(320, 640), Run(640, 970)]
BLOCKS = torch.randperm(31, generator=torch.Generator().manual_seed(1)) + 1
"""Where the blocks of a prompt lie."""


class Builder:
    """Keeps the metadata that a backend would get."""

    def build(self, common_prefix_len, common, fast_build=False):
        # A schedule made ahead has no room for the runs of a prompt.
        assert common_prefix_len == 0
        assert fast_build
        self.common = common
        return common


class Runner:
    """A runner whose model has one attention layer."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.vllm_config = VllmConfig()
        self.builder = Builder()
        self.attn_groups = [
            [SimpleNamespace(layer_names=["attention"], get_metadata_builder=lambda: self.builder)],
        ]

    def model(self, input_ids, positions):
        return positions


def attended_positions(runs: list[Run], attended: AttendedBlocks | None = None) -> dict[int, list[int]]:
    """The positions that each computed position attends to, as vLLM's backends read the metadata."""
    runner = Runner()
    computed = PartialForward(runner, PAGE).compute(torch.arange(970), runs, BLOCKS, attended)
    common = runner.builder.common
    place_of = {int(block): place for place, block in enumerate(BLOCKS)}
    written = [place_of[slot // PAGE] * PAGE + slot % PAGE for slot in common.slot_mapping.tolist()]
    assert written == computed.tolist()
    found = {}
    starts = common.query_start_loc_cpu.tolist()
    for row, (first, end) in enumerate(pairwise(starts)):
        keys = [place_of[int(block)] * PAGE + slot for block in common.block_table_tensor[row] for slot in range(PAGE)][
            : int(common.seq_lens[row])
        ]
        assert int(common.seq_lens[row]) <= common.max_seq_len
        for behind, query in enumerate(range(first, end)):
            found[written[query]] = keys[: len(keys) - (end - first) + behind + 1]
    return found


def test_by_default_a_token_attends_to_all_in_front_of_it_and_to_itself():
    for position, keys in attended_positions([Run(8, 16), Run(400, 437), Run(960, 970)]).items():
        assert keys == list(range(position + 1))


def test_blocks_that_are_left_out_are_not_attended_to_and_all_others_are():
    attention = torch.zeros(970)
    attention[[150, 250, 500]] = 1.0
    attended = AttendedBlocks(attention, DOCUMENTS, 0.1, PAGE)
    runs = [Run(328, 336), Run(400, 437), Run(640, 648), Run(960, 970)]
    found = attended_positions(runs, attended)
    assert sorted(found) == [position for run in runs for position in range(run.start, run.end)]
    for position, keys in found.items():
        (run,) = [run for run in runs if run.start <= position < run.end]
        blocks = set(attended.of(run).tolist())
        assert len(blocks) < run.end // PAGE
        assert keys == [key for key in range(position + 1) if key // PAGE in blocks]
        assert {150 // PAGE, 250 // PAGE} <= blocks
