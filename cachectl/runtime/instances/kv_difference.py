"""Says why an instance can use nobody's KV, for operators."""

from protocol.kv import KvMemory


def kv_difference(others: KvMemory | None, own: KvMemory | None) -> str:
    """What the KV of an instance's ``own`` memory has other than that of all ``others``, and what to set.

    None is an engine that keeps no KV.
    """
    if others is None or own is None:
        return f"it keeps {'no ' if own is None else ''}KV, and the others do{' not' if others is None else ''}"
    if own.page_tokens != others.page_tokens:
        return (
            f"its blocks have {own.page_tokens} tokens, and those of the others {others.page_tokens}; "
            "set generator.engine_args.block_size"
        )
    if own.page_bytes != others.page_bytes:
        return (
            f"its blocks are {own.page_bytes} bytes of {own.layout}, and those of the others {others.page_bytes} bytes "
            f"of {others.layout}; name one generator.dtype for all"
        )
    if own.layout != others.layout:
        return (
            f"its KV cache is {own.layout} on {own.device}, and that of the others {others.layout} on "
            f"{others.device}; they share KV with generator.kv.page_layout neutral and the same files of the model"
        )
    return "it has other files of the model, another tokenizer or prompt layout, or another number of ranks"
