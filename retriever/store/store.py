"""The store: one database, and what its tables hold."""

from typing import NamedTuple

from retriever.store.chunks import Chunks
from retriever.store.database import Database
from retriever.store.documents import Documents
from retriever.store.jobs import Jobs
from retriever.store.orphans import Orphans


class Store(NamedTuple):
    """What is stored of all tenants. Each table is read and written in a transaction of the ``database``."""

    database: Database
    documents: Documents
    chunks: Chunks
    jobs: Jobs
    orphans: Orphans
