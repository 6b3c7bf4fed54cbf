"""The ingestion of one document that is too long for a group."""

from retriever.ingestion.chunk_preparer import ChunkPreparer, SourceText
from retriever.store.database import Database
from retriever.store.incoming_document import IncomingDocument
from retriever.store.jobs import JobItem, Jobs
from retriever.store.staged_chunks import StagedChunks


class LongDocument:
    """Stages the chunks of a queued document part by part. Groups of other documents may come between two parts."""

    def __init__(
        self,
        database: Database,
        jobs: Jobs,
        staged: StagedChunks,
        preparer: ChunkPreparer,
        item: JobItem,
        document: IncomingDocument,
    ) -> None:
        self.item = item
        self.document = document
        self._database = database
        self._jobs = jobs
        self._staged = staged
        self._parts = preparer.parts(SourceText(document.text, document.title, document.triplets))
        self._position = 0

    def stage_part(self) -> bool:
        """Prepare and stage the next part. Return False if all are staged, or the document is no longer queued.

        After an error, the same part is tried again. Raises as ``ChunkPreparer.prepare``, StorageFull, sqlite3.Error.
        """
        part = self._parts.next()
        with self._database.write() as transaction:
            if not part or not self._jobs.still_queued(transaction, [self.item]):
                return False
            self._staged.add(transaction, self.item.seq, self._position, part)
        self._position += len(part)
        return True
