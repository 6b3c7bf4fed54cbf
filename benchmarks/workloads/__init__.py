"""What benchmarks ask: question sets, traces and generated workloads."""
