"""Computes some of a prompt's tokens through the engine's own layers, over the KV of the others."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata

from generator.composing.attention_layers import slots_of
from generator.composing.runs import Run, positions_of

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

_FRONT_TOKENS = 128
"""Everything attends to the prompt's front: it holds the system prompt, and the first tokens are attention sinks
(Xiao et al. 2024)."""

_LEAST_SHARE = 0.5
"""Of the blocks between the front and a document. With less, answers from several documents deviate more."""

_SHARE_PER_RECOMPUTED = 2.0
"""The more is computed again, the more it attends to. From half of the tokens on, that is everything."""


class AttendedBlocks:
    """The blocks that matter to the question, for tokens of ``documents`` that are computed again.

    Half of what computing a token again costs is its attention to what is before it, most of which the question
    does not ask for. So a token attends to the prompt's front, to its own document, and to those blocks between them to
    which the question pays the most ``attention``. That has one value for each position up to the end of the last
    document. The share of these blocks rises with the ``share`` of tokens that is computed again, up to all.
    """

    def __init__(self, attention: torch.Tensor, documents: Sequence[Run], share: float, page_tokens: int) -> None:
        pages = -(-len(attention) // page_tokens)
        padded = attention.new_zeros(pages * page_tokens)
        padded[: len(attention)] = attention
        self._best_first = padded.view(pages, page_tokens).amax(1).argsort(descending=True).cpu()
        self._page_tokens = page_tokens
        self._front = -(-_FRONT_TOKENS // page_tokens)
        self._share = min(1.0, max(_LEAST_SHARE, _SHARE_PER_RECOMPUTED * share))
        self._documents = [(document, self._in_front_of(document)) for document in documents]

    def of(self, run: Run) -> torch.Tensor:
        """The blocks that a run of tokens attends to, by their place in the prompt, ascending. The last is the run's.

        A run that no document holds whole attends to all blocks.
        """
        end = -(-run.end // self._page_tokens)
        for document, in_front in self._documents:
            if document.start <= run.start and run.end <= document.end:
                own = torch.arange(document.start // self._page_tokens, end)
                return torch.cat([in_front, own])
        return torch.arange(end)

    def _in_front_of(self, document: Run) -> torch.Tensor:
        """The blocks before a document's own ones that its tokens attend to."""
        own = document.start // self._page_tokens
        front = min(self._front, own)
        between = self._best_first[(self._best_first >= front) & (self._best_first < own)]
        best = between[: round(self._share * len(between))]
        return torch.cat([torch.arange(front), best.sort().values])


class Stop(Exception):
    """Raised by a hook on a layer to end a forward pass there."""


class PartialForward:
    """Forward passes over selected tokens, on the model and the attention backend of an engine's ``runner``.

    A run of tokens is a separate request to the attention backend: its queries are the run's tokens, and its keys are
    everything up to the run's end, or those blocks of it that matter. Each layer writes the keys and values of all its
    tokens before its attention, so later runs attend to the fresh ones of earlier runs.
    """

    def __init__(self, runner: "GPUModelRunner", page_tokens: int) -> None:
        self._runner = runner
        self._page_tokens = page_tokens
        self.device = runner.device

    def compute(
        self,
        token_ids: torch.Tensor,
        runs: Sequence[Run],
        blocks: torch.Tensor,
        attended: AttendedBlocks | None = None,
    ) -> torch.Tensor | None:
        """Compute runs of a prompt, and write their keys and values into its blocks.

        ``token_ids`` are the prompt's, ``blocks`` the numbers of its blocks in order, and ``runs`` ascend. A run
        attends to its ``attended`` blocks, by default to all up to its end. Returns the tokens' hidden states after
        the last layer, or None if a hook has ended the pass.
        """
        positions = positions_of(runs, self.device)
        return self._forward(token_ids[positions], positions, positions, runs, blocks, attended)

    def compute_with(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        places: torch.Tensor,
        blocks: torch.Tensor,
        attention: object,
    ) -> None:
        """Compute tokens at ``positions`` into their ``places`` of a sequence, with attention of one's own.

        All layers' implementations have to be such that take ``attention`` for their metadata.
        """
        slots = slots_of(places, blocks, self._page_tokens)
        layers = [name for groups in self._runner.attn_groups for group in groups for name in group.layer_names]
        self._pass(token_ids, positions, slots, dict.fromkeys(layers, attention))

    def finish(self) -> None:
        """Wait until the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def compute_alone(self, token_id: int, position: int, block: int) -> None:
        """Compute a token as if it stood alone at a position, into the first slot of a block."""
        ids = torch.tensor([token_id], device=self.device)
        positions = torch.tensor([position], device=self.device)
        first = torch.zeros_like(positions)
        self._forward(ids, positions, first, [Run(0, 1)], torch.tensor([block], device=self.device))

    def _forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        places: torch.Tensor,
        runs: Sequence[Run],
        blocks: torch.Tensor,
        attended: AttendedBlocks | None = None,
    ) -> torch.Tensor | None:
        """Compute tokens at ``positions`` into their ``places`` of a sequence, which are those of the runs."""
        slots = slots_of(places, blocks, self._page_tokens)
        table, ends = self._keys(runs, blocks, attended)
        metadata = {name: built for names, built in self._metadata(runs, table, ends, slots) for name in names}
        return self._pass(token_ids, positions, slots, metadata)

    def _pass(
        self, token_ids: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, metadata: dict[str, Any]
    ) -> torch.Tensor | None:
        """A forward pass whose layers write into ``slots``, and attend as their ``metadata`` say."""
        with (
            torch.inference_mode(),
            set_forward_context(
                metadata,
                self._runner.vllm_config,
                num_tokens=len(positions),
                slot_mapping=dict.fromkeys(metadata, slots),
                skip_compiled=True,
            ),
        ):
            try:
                hidden: torch.Tensor = self._runner.model(input_ids=token_ids.to(torch.int32), positions=positions)
            except Stop:
                return None
        return hidden

    def _keys(
        self, runs: Sequence[Run], blocks: torch.Tensor, attended: AttendedBlocks | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Each run's block table, shape [runs, blocks], and how many tokens it has, up to the run's end.

        A table may leave out blocks: keys carry their positions, so the others need not be consecutive.
        """
        ends = torch.tensor([run.end for run in runs], dtype=torch.int32)
        table = blocks.to("cpu", torch.int32).expand(len(runs), -1).contiguous()
        if attended is not None:
            for row, run in enumerate(runs):
                seen = attended.of(run)
                table[row, : len(seen)] = table[row, seen]
                ends[row] -= (-(-run.end // self._page_tokens) - len(seen)) * self._page_tokens
        return table.to(self.device), ends

    def _metadata(
        self, runs: Sequence[Run], table: torch.Tensor, ends: torch.Tensor, slots: torch.Tensor
    ) -> Iterator[tuple[list[str], Any]]:
        """What each group of layers needs to know about the runs, as its attention backend wants it.

        A run's keys are those in its row of the block ``table``, up to its end among ``ends``.
        """
        counts = torch.tensor([0, *(run.tokens for run in runs)], dtype=torch.int32)
        starts = counts.cumsum(0).to(torch.int32)
        common = CommonAttentionMetadata(
            query_start_loc=starts.to(self.device),
            query_start_loc_cpu=starts,
            seq_lens=ends.to(self.device),
            num_reqs=len(runs),
            num_actual_tokens=len(slots),
            max_query_len=max(run.tokens for run in runs),
            max_seq_len=int(ends.max()),
            block_table_tensor=table,
            slot_mapping=slots,
            causal=True,
        )
        for groups in self._runner.attn_groups:
            for group in groups:
                # Not a schedule made ahead: a GPU's backend keeps room in it for the requests of a step, and a prompt
                # may have more runs.
                yield group.layer_names, group.get_metadata_builder().build(0, common, fast_build=True)
