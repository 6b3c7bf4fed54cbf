"""A small model with random weights, for what depends on a model's shape and not on what it has learnt."""

from pathlib import Path

RANKS = 8
"""The most tensor-parallel ranks that can share the model."""

_SPREAD = 0.15
"""The standard deviation of the weights: large enough that an answer depends on every token of its prompt."""


def make_random_model(folder: Path, source: Path) -> Path:
    """Make a Llama of 4 layers in ``folder``, with the tokenizer of the model in the folder ``source``.

    The weights are the same each time.
    """
    from transformers import AutoConfig, AutoTokenizer, LlamaConfig, LlamaForCausalLM, set_seed

    known = AutoConfig.from_pretrained(source)  # nosec B615  # a folder, not the hub
    tokenizer = AutoTokenizer.from_pretrained(source)  # nosec B615  # the same folder
    config = LlamaConfig(
        vocab_size=known.vocab_size,
        hidden_size=32 * RANKS,
        intermediate_size=64 * RANKS,
        num_hidden_layers=4,
        num_attention_heads=RANKS,
        num_key_value_heads=RANKS,
        head_dim=32,
        max_position_embeddings=known.max_position_embeddings,
        bos_token_id=known.bos_token_id,
        eos_token_id=known.eos_token_id,
        # Tied embeddings would make a random model repeat its last token.
        tie_word_embeddings=False,
    )
    set_seed(0)
    model = LlamaForCausalLM(config)
    for weights in model.parameters():
        if weights.dim() > 1:
            weights.data.normal_(0, _SPREAD)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
