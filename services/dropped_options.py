"""Options that there were, and what there is instead of each."""

DROPPED_OPTIONS = {
    "gateway.body_timeout_s": "a body has five minutes",
    "gateway.context_questions": "a follow-up is searched with the question before it",
    "gateway.drain_s": "shutdown waits ten seconds for leases",
    "gateway.first_step_timeout_s": "an engine has three minutes for its first step",
    "gateway.hold_back_s": "a stream starts after a second in the queue",
    "gateway.max_query_bytes": "it is eight times gateway.max_query_chars",
    "gateway.ping_s": "idle streams get a comment line every 15 seconds",
    "gateway.readiness_interval_s": "the other parts are checked every second",
    "gateway.readiness_timeout_s": "a part has five seconds to answer a check",
    "gateway.retry_after_s": "Retry-After is two seconds where the end is unknown",
    "gateway.rewrite_max_tokens": "a rewritten question has at most 64 tokens",
    "gateway.rewrite_timeout_s": "rewriting a question may take five seconds",
    "gateway.send_timeout_s": "a client has a minute to read a piece of a stream",
    "retriever.graph.retry_first_s": "a failed group of chunks is read again after a second, and twice that each time",
    "retriever.graph.retry_max_s": "pauses before a group of chunks is read again are at most a minute",
    "retriever.index.retrain_growth": "lists are trained again when their index has doubled or halved",
    "retriever.index.retrain_imbalance": "lists are trained again when they are twice as uneven",
    "retriever.ingest.group_bytes": "a group has at most 256 KiB of documents",
    "retriever.ingest.group_documents": "a group has at most 512 documents",
    "retriever.ingest.retry_first_s": "a failed group is tried again after a second, and twice that each time",
    "retriever.ingest.retry_max_s": "pauses before a group is tried again are at most a minute",
    "retriever.search_threads": "four searches run at once",
}
"""By name. Anyone who still sets one gets an error with this sentence."""
