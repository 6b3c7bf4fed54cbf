"""The pace of work in the background: values that nobody who runs a retriever has to choose."""

from typing import NamedTuple


class Pace(NamedTuple):
    """Times in seconds. Tests change them.

    - ``retry_first_s``: the first pause before a group that failed is ingested, or read into the graph, again. Each
      pause is twice the previous one, up to ``retry_max_s``.
    - ``group_documents``: the most documents that are ingested at once. ``group_bytes``: the largest size of such a
      group, unless a single document is larger.
    """

    retry_first_s: float = 1.0
    retry_max_s: float = 60.0
    group_documents: int = 512
    group_bytes: int = 256 * 1024
