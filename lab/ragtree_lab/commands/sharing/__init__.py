"""``ragtree bench sharing`` and ``peer-faults``: KV of other machines, and what becomes of queries if those fail."""
