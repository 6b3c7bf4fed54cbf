"""The key figures of every benchmark, ratios against its baselines first."""

from ragtree_lab.suite.figure import Figure

_SIZES = "sizes[host_tokens].policies"
_NETWORK = "network[machines,way,shards,link_gbit_per_s]"

KEY_FIGURES = {
    "scheduling": (
        Figure("decisions on a request, largest tree over smallest, median", "p50_ratio", "x"),
        Figure("processor time of the decisions, {} nodes, median", "by_nodes.*.p50_us", "µs"),
        Figure("processor time of the decisions, {} nodes, p99", "by_nodes.*.p99_us", "µs"),
        Figure("constant work on this machine, p99 over median", "machine_p99_over_p50", "x"),
        Figure("decisions are compiled", "compiled"),
    ),
    "policies": (
        Figure(
            "hit tokens, FORESIGHT over LRU, {} tokens in host memory",
            f"{_SIZES}.FORESIGHT.token_hit_rate",
            "x",
            over=f"{_SIZES}.LRU.token_hit_rate",
        ),
        Figure(
            "hit tokens, BELADY (knows the future) over FORESIGHT, {} tokens in host memory",
            f"{_SIZES}.BELADY.token_hit_rate",
            "x",
            over=f"{_SIZES}.FORESIGHT.token_hit_rate",
        ),
        Figure("hit tokens, FORESIGHT, {} tokens in host memory", f"{_SIZES}.FORESIGHT.token_hit_rate", "%"),
        Figure("trace", "trace"),
    ),
    "controller": (
        Figure("decisions a second, {} instances, {} shards over one, simulated", "shards_speedup.*.simulated.*", "x"),
        Figure("the same at once, {} instances, {} processes over one", "shards_speedup.*.processes.*", "x"),
        Figure("decisions a second, {} instances, {} shards", "decisions[instances,shards].decisions_per_s"),
        Figure(
            "requests of the shard with most, {} instances, {} shards", "decisions[instances,shards].largest_share", "%"
        ),
        Figure("bytes a node, {}, one machine", "directory.node_bytes.*"),
        Figure("bytes that a further machine adds to a node, {}", "directory.machine_bytes.*"),
        Figure("bytes a node and machine, {}, {} machines", "directory.rows[tier,machines].bytes_per_node_and_machine"),
        Figure("decisions a second on known paths, {} nodes", "growth[nodes].known.per_s"),
        Figure("decisions a second on new paths, all tiers full, {} nodes", "growth[nodes].new.per_s"),
        Figure("bytes a node, full disk, {} nodes", "growth[nodes].bytes_per_node"),
        Figure("tokens not computed, {} machines, {}, {} shards, {} Gbit/s", f"{_NETWORK}.token_hit_rate", "%"),
        Figure("tokens read on other machines, {} machines, {}, {} shards, {} Gbit/s", f"{_NETWORK}.peer_rate", "%"),
        Figure(
            "bytes over the network, {} machines, {}, {} shards, {} Gbit/s", f"{_NETWORK}.network_bytes_per_s", "GB/s"
        ),
        Figure("mean TTFT, simulated, {} machines, {}, {} shards, {} Gbit/s", f"{_NETWORK}.mean_ttft_s", "s"),
    ),
    "retrieval": (
        Figure(
            "search of {} of the lists in {} stages over one shot", "rows[search_ratio,stages].staged_over_oneshot", "x"
        ),
        Figure("search of the graph in stages over one shot, beam {}", "hnsw[beam].staged_over_oneshot", "x"),
        Figure("results that differ from the search in one shot", "unequal_results"),
    ),
    "recall": (
        Figure("recall@5, hybrid over dense search", "recall_at_5.hybrid", "x", over="recall_at_5.dense"),
        Figure("recall@5, dense index over exact search", "recall_at_5.dense", "x", over="recall_at_5.exact"),
        Figure("recall@5, {} search", "recall_at_5.*"),
        Figure("nDCG@10, {} search", "ndcg_at_10.*"),
        Figure("search time, {}, median", "search_p50_ms.*", "ms"),
        Figure("documents", "documents"),
    ),
    "ingestion": (
        Figure("documents a second, {}", "rows[dtype].documents_per_s"),
        Figure("recall@5, {}", "rows[dtype].recall_at_5"),
        Figure("search time, {}, median", "rows[dtype].search_p50_ms", "ms"),
    ),
    "follow-ups": (
        Figure("a {} finds its answer among five chunks, {}", "rows[kind,way].found_at_5"),
        Figure("rewriting a follow-up, median", "rewriting.p50_ms", "ms"),
        Figure("rewrites that cannot be used", "rewriting.unusable"),
    ),
    "graph": (
        Figure("recall@5, graph over dense search, {}", "recall_at_5.*.graph", "x", over="recall_at_5.*.dense"),
        Figure("recall@5, graph over hybrid search, {}", "recall_at_5.*.graph", "x", over="recall_at_5.*.hybrid"),
        Figure("recall@5, {}, {}", "recall_at_5.*.*"),
        Figure("search time, {}, {}, median", "search_ms.*.*", "ms"),
        Figure("documents a minute read into the graph, {}", "index.*.documents_per_minute"),
        Figure("bytes of the graph in the store, {}", "index.*.bytes"),
        Figure("TTFT over facts, ratio, {}", "ttft_ratio.*", "x"),
        Figure("throughput over facts, dependency attention over {}", "throughput_ratio.*", "x"),
        Figure("throughput over facts at the SLO, dependency attention over {}", "throughput_at_slo_ratio.*", "x"),
        Figure("throughput over facts at the SLO, {}", "throughput_at_slo.*", "/s"),
    ),
    "graph-policies": (
        Figure(
            "hit tokens, FORESIGHT over LRU, {} waiting",
            "means[waiting].token_hit_rate.FORESIGHT",
            "x",
            over="means[waiting].token_hit_rate.LRU",
        ),
        Figure("hit tokens, LACR over {}, {} waiting", "means[waiting].lacr_over.*", "x"),
        Figure("hit tokens, {}, {} waiting", "means[waiting].token_hit_rate.*", "%"),
        Figure("hit tokens by order, {}, {} waiting, {}", "order_means[policy,waiting].token_hit_rate.*", "%"),
    ),
    "tiers": (
        Figure("TTFT, KV in GPU over vLLM's own prefix cache", "gpu_over_floor", "x"),
        Figure("TTFT, KV in host memory over vLLM's own prefix cache", "host_over_floor", "x"),
        Figure("TTFT, KV on disk over vLLM's own prefix cache", "disk_over_floor", "x"),
        Figure("TTFT, KV on a cold disk over vLLM's own prefix cache", "disk_cold_over_floor", "x"),
        Figure("TTFT, miss over plain vLLM", "miss_over_plain", "x"),
        Figure("load from host memory over a plain copy", "host_share_of_copy", "%"),
        Figure("load from disk over a plain file read", "disk_share_of_read", "%"),
        Figure("TTFT, {}, median", "ttft_ms.*", "ms"),
        Figure("load from host memory", "host_bytes_per_s", "GB/s"),
        Figure("load from disk", "disk_bytes_per_s", "GB/s"),
        Figure("load from a cold disk", "disk_cold_bytes_per_s", "GB/s"),
        Figure("tokens of the prompts' prefix", "prefix_tokens"),
    ),
    "compose": (
        Figure(
            "score over a full prefill's, {}, {}, {} of the tokens computed again",
            "rows[task,method,share].score",
            "x",
            over="rows[task,method,share].full_score",
        ),
        Figure(
            "tokens equal to a full prefill's, {}, {}, {} of the tokens computed again",
            "rows[task,method,share].top1_agreement",
            "%",
        ),
        Figure(
            "time to first token, full prefill over composed, {}, {}, {} of the tokens computed again",
            "rows[task,method,share].prefill_speedup",
            "x",
        ),
    ),
    "exactness": (
        Figure("prompts with other tokens, with the cache against without", "mismatch_rate", "%"),
        Figure("prompts with other tokens, two runs without the cache", "without_cache.mismatch_rate", "%"),
        Figure("largest difference of logprobs, with the cache against without", "largest_logprob_difference"),
        Figure("largest difference of logprobs, two runs without it", "without_cache.largest_logprob_difference"),
        Figure("prompts", "prompts"),
        Figure("dtype", "dtype"),
        Figure("prompt tokens, {}", "tokens.*"),
    ),
    "families": (
        Figure("prompts with other tokens than without a cache, {}", "rows[family].mismatches"),
        Figure("the same, two runs without a cache, {}", "rows[family].same_mismatches"),
        Figure("answers from a tier with other tokens than when computed, {}", "rows[family].tier_mismatches"),
        Figure("prompt tokens found, {}", "rows[family].found_share", "%"),
        Figure("TTFT, {}, {}", "rows[family].ttft_ms.*", "ms"),
        Figure("time of a later token, {}, {} the connector", "rows[family].ms_per_token.*", "ms"),
        Figure("bytes a token, {}", "rows[family].bytes_per_token"),
        Figure("bytes a state, {}", "rows[family].bytes_per_state"),
        Figure("refused, {}", "rows[family].refused"),
    ),
    "sustained": (
        Figure("mean TTFT, stretch {}, {} over ours", "stretches[].speedup.*", "x"),
        Figure("last speed-up over the first one, against {}", "last_over_first.*", "x"),
        Figure("mean TTFT, stretch {}, ours", "stretches[].mean_ttft_ms", "ms"),
        Figure("prompt tokens cached, stretch {}", "stretches[].token_hit_rate", "%"),
    ),
    "sharing": (
        Figure("TTFT, KV on another machine over this one's memory", "remote_over_local", "x"),
        Figure("TTFT, KV on another machine over computing it", "remote_over_computed", "x"),
        Figure("read on another machine over a plain copy over TCP", "bandwidth_share_of_tcp", "%"),
        Figure("queries a second, machines that share over ones that are alone", "shared_over_alone", "x"),
        Figure("queries a second, machines that share over ones with routing only", "shared_over_routed", "x"),
        Figure("queries a second, with a KV generator over machines that are alone", "generator_over_alone", "x"),
        Figure("queries a second, one machine with a KV generator over it without", "generator_over_one", "x"),
        Figure("latency with a KV generator, of that of machines that are alone", "generator_latency", "%"),
        Figure("latency with a KV generator, of that of one machine without", "generator_latency_of_one", "%"),
        Figure("queries a second, {}", "throughput.*"),
        Figure("TTFT of the shortest prompt, {}, median", "ttft_ms.*", "ms"),
    ),
    "peer-faults": (
        Figure("all is as it should be, {}", "rows[fault].passed"),
        Figure("answers that are wrong or missing, {}", "rows[fault].wrong"),
        Figure("queries more than one timeout slower than computing, {}", "rows[fault].late"),
        Figure("largest delay against computing, {}", "rows[fault].during.largest_delay_ms", "ms"),
        Figure("reads that failed, {}", "rows[fault].failures"),
        Figure("time until it serves again, {}", "rows[fault].served_again_s", "s"),
        Figure("queries that read at the peer before, {}", "rows[fault].before.read_share", "%"),
        Figure("TTFT during the fault, {}, median", "rows[fault].during.ttft_p50_ms", "ms"),
        Figure("TTFT of the same queries computed, {}, median", "rows[fault].computed_ttft_p50_ms", "ms"),
    ),
    "orders": (
        Figure("F1, gain over retrieval order, {}, {}", "rows[set,order].f1_over_retrieval.mean"),
        Figure("answers with a right one in them, gain over it, {}, {}", "rows[set,order].subspan_over_retrieval.mean"),
        Figure("prompt tokens cached, {}, {}", "rows[set,order].token_hit_rate", "%"),
        Figure("mean TTFT, {}, {}", "rows[set,order].mean_ttft_ms", "ms"),
        Figure("F1, {}, {}", "rows[set,order].f1"),
    ),
    "prompts": (
        Figure("F1 with refusals, {}, {}, {}", "rows[set,prompt,sampling].score"),
        Figure("answerable questions refused, {}, {}, {}", "rows[set,prompt,sampling].refused_answerable", "%"),
        Figure("unanswerable questions refused, {}, {}, {}", "rows[set,prompt,sampling].refused_unanswerable", "%"),
        Figure("answers that loop, {}, {}, {}", "rows[set,prompt,sampling].looping", "%"),
    ),
    "reorder": (
        Figure("mean TTFT, first come over reordered, all loads", "ttft_ratio", "x"),
        Figure("mean TTFT, first come over reordered, load {}", "rows[load].ttft_ratio", "x"),
        Figure("p99 TTFT, first come over reordered, load {}", "rows[load].p99_ratio", "x"),
        Figure("sustainable rate, first come", "sustainable_per_s", "/s"),
        Figure("most often that a request was overtaken", "largest_overtake"),
    ),
    "speculation": (
        Figure(
            "search time not overlapped, off over on, engine {}, search of {} of the lists",
            "engines.*.rows[search_ratio].non_overlapped_ratio",
            "x",
        ),
        Figure(
            "the same in RAGCache's strict count, engine {}, {} of the lists",
            "engines.*.rows[search_ratio].strict_non_overlapped_ratio",
            "x",
        ),
        Figure("TTFT, off over on, engine {}, {} of the lists", "engines.*.rows[search_ratio].ttft_ratio", "x"),
        Figure("p99 TTFT, on over off, engine {}, {} questions/s", "engines.*.sweep[rate].p99_on_over_off", "x"),
        Figure("search, engine {}, {} of the lists", "engines.*.rows[search_ratio].search_ms", "ms"),
    ),
    "overhead": (
        Figure(
            "TTFT that the stack adds, share of the engine's, {} streams, median",
            "by_streams.*.p50_overhead_share",
            "%",
        ),
        Figure("TTFT that the stack adds, {} streams, median", "by_streams.*.p50_overhead_ms", "ms"),
        Figure("time per token that the stack adds, {} streams, median", "by_streams.*.per_token_overhead_ms", "ms"),
        Figure("TTFT of the engine, {} streams, median", "by_streams.*.engine_p50_ms", "ms"),
        Figure("tokens of a prompt, median", "prompt_tokens_p50"),
    ),
    "replay": (
        Figure("mean TTFT without load, {} over ours", "ttft_ratio_unloaded.*", "x"),
        Figure("mean TTFT at the highest rate that both sustain, {} over ours", "ttft_ratio.*", "x"),
        Figure("sustained rate, ours over {}", "throughput_ratio.*", "x"),
        Figure("sustained rate, {}", "systems.*.sustained_per_s", "/s"),
        Figure("mean TTFT without load, {}", "systems.*.unloaded.mean_ttft_ms", "ms"),
        Figure("our prompt tokens from {}", "token_hit_rate.*", "%"),
        Figure("prompts with documents in a new sequence", "new_path_share", "%"),
        Figure("everything was measured", "complete"),
    ),
}
"""Figures by benchmark. The full result has more."""
