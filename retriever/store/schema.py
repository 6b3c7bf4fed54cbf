"""The tables of the store, and what upgrades older ones."""

VERSION = 12
"""Raise it with every change to the tables."""

_NAME = """
-- The store's name, which no other store has: one row.
CREATE TABLE store (name TEXT NOT NULL);
INSERT INTO store VALUES (lower(hex(randomblob(16))));
"""

_ATTEMPTS = """
-- How many processes have ended while they tried something. "id" is that of an item of the queue, of a document that is
-- embedded again, or of a chunk that is read for the graph. None of these is ever reused.
CREATE TABLE attempts (
    kind TEXT NOT NULL,
    id INTEGER NOT NULL,
    count INTEGER NOT NULL,
    -- The process that is trying now. Another one reads that it has ended.
    process TEXT,
    PRIMARY KEY (kind, id)
) WITHOUT ROWID;
"""

_STAGED_CHUNKS = """
-- The chunks of a queued document that are ready, until all of them are and become its chunks in one commit.
CREATE TABLE staged_chunks (
    item INTEGER NOT NULL REFERENCES job_items (seq) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    id INTEGER NOT NULL,
    text TEXT NOT NULL,
    content_hash TEXT NOT NULL,
    embedding BLOB NOT NULL,
    first_line INTEGER NOT NULL,
    last_line INTEGER NOT NULL,
    triplets TEXT,
    PRIMARY KEY (item, position)
);
"""

_TURNS = """
-- Tenants take turns. The index has what a turn needs: "tenant" itself lies behind the payload.
CREATE INDEX job_items_by_tenant ON job_items (tenant);
"""

_OTHERS = """
CREATE TABLE collections (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    created_at REAL NOT NULL,
    -- How the collection is searched by default. NULL: as the configuration says.
    search TEXT,
    UNIQUE (tenant, name)
);
CREATE TABLE documents (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    collection INTEGER NOT NULL REFERENCES collections (id),
    document_id TEXT NOT NULL,
    filename TEXT NOT NULL,
    title TEXT,
    text TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    attributes TEXT NOT NULL,
    content_hash TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    -- The first line of each page, as a JSON array. NULL: the document has no pages, or none were recorded.
    pages TEXT,
    -- The triplets that were uploaded with the document, as a JSON array of [head, relation, tail]. NULL: none.
    triplets TEXT,
    UNIQUE (collection, document_id)
);
CREATE INDEX documents_by_fingerprint ON documents (fingerprint);
-- AUTOINCREMENT never reuses the id of a removed chunk, so an index that lags cannot name the wrong one.
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    document INTEGER NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
    collection INTEGER NOT NULL,
    position INTEGER NOT NULL,
    text TEXT NOT NULL,
    content_hash TEXT NOT NULL,
    embedding BLOB NOT NULL,
    -- Where the chunk lies in the document's text: lines from 1, both included. NULL: none were recorded.
    first_line INTEGER,
    last_line INTEGER,
    -- Those of the document's triplets that the chunk states, in the same form.
    triplets TEXT
);
CREATE INDEX chunks_by_document ON chunks (document, position);
CREATE INDEX chunks_by_collection ON chunks (collection);
CREATE INDEX chunks_by_content ON chunks (content_hash);
-- "value" has no declared type, so strings, numbers and booleans keep theirs.
CREATE TABLE attributes (
    document INTEGER NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
    collection INTEGER NOT NULL,
    key TEXT NOT NULL,
    kind TEXT NOT NULL,
    value NOT NULL,
    PRIMARY KEY (document, key)
) WITHOUT ROWID;
CREATE INDEX attributes_by_value ON attributes (collection, key, kind, value);
CREATE TABLE jobs (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    collection TEXT NOT NULL,
    status TEXT NOT NULL,
    total INTEGER NOT NULL,
    stored INTEGER NOT NULL,
    unchanged INTEGER NOT NULL,
    failed_documents INTEGER NOT NULL,
    errors TEXT NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX jobs_by_time ON jobs (status, updated_at);
-- A queued document. The transaction that stores the document deletes its row, so each is ingested exactly once.
CREATE TABLE job_items (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    job TEXT NOT NULL REFERENCES jobs (id),
    collection INTEGER NOT NULL,
    document_id TEXT NOT NULL,
    line INTEGER,
    bytes INTEGER NOT NULL,
    payload BLOB NOT NULL,
    tenant TEXT NOT NULL DEFAULT ''
);
CREATE INDEX job_items_by_job ON job_items (job);
CREATE INDEX job_items_by_document ON job_items (collection, document_id);
CREATE TABLE idempotency_keys (
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    body_hash TEXT NOT NULL,
    job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    PRIMARY KEY (tenant, key)
) WITHOUT ROWID;
CREATE INDEX idempotency_keys_by_job ON idempotency_keys (job);
-- An idempotency key of an upload that is spread over several shards. This shard checks the key for all of them.
CREATE TABLE claimed_keys (
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    body_hash TEXT NOT NULL,
    since REAL NOT NULL,
    PRIMARY KEY (tenant, key)
) WITHOUT ROWID;
CREATE INDEX claimed_keys_by_time ON claimed_keys (since);
-- A content that no chunk of the tenant has any more. Ids are never reused.
CREATE TABLE orphans (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    content_hash TEXT NOT NULL,
    collection TEXT NOT NULL,
    document_id TEXT NOT NULL,
    -- How often it was tried to delete the orphan's KV, and why that is given up. NULL: it is not.
    attempts INTEGER NOT NULL DEFAULT 0,
    given_up TEXT,
    UNIQUE (tenant, content_hash)
);
CREATE INDEX orphans_by_document ON orphans (tenant, collection, document_id);
-- An entity of a collection's graph. It lives as long as a mention of it. "key" is what spellings of its name share.
-- Embeddings are float16.
CREATE TABLE entities (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    collection INTEGER NOT NULL,
    key TEXT NOT NULL,
    name TEXT NOT NULL,
    embedding BLOB NOT NULL,
    UNIQUE (collection, key)
);
-- A sentence of a chunk that names entities: a range of characters of its text.
CREATE TABLE statements (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    chunk INTEGER NOT NULL REFERENCES chunks (id) ON DELETE CASCADE,
    collection INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    embedding BLOB NOT NULL
);
CREATE INDEX statements_by_chunk ON statements (chunk);
CREATE INDEX statements_by_collection ON statements (collection);
CREATE TABLE mentions (
    statement INTEGER NOT NULL REFERENCES statements (id) ON DELETE CASCADE,
    entity INTEGER NOT NULL REFERENCES entities (id),
    PRIMARY KEY (statement, entity)
) WITHOUT ROWID;
CREATE INDEX mentions_by_entity ON mentions (entity);
CREATE TRIGGER entity_forgotten AFTER DELETE ON mentions
WHEN NOT EXISTS (SELECT 1 FROM mentions WHERE entity = OLD.entity)
BEGIN
    DELETE FROM entities WHERE id = OLD.entity;
END;
CREATE TABLE relations (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    statement INTEGER NOT NULL REFERENCES statements (id) ON DELETE CASCADE,
    head INTEGER NOT NULL REFERENCES entities (id) ON DELETE CASCADE,
    relation TEXT NOT NULL,
    tail INTEGER NOT NULL REFERENCES entities (id) ON DELETE CASCADE
);
CREATE INDEX relations_by_statement ON relations (statement);
CREATE INDEX relations_by_head ON relations (head);
CREATE INDEX relations_by_tail ON relations (tail);
-- The chunks whose statements are stored, and the fingerprint of what read them.
CREATE TABLE read_chunks (
    chunk INTEGER PRIMARY KEY REFERENCES chunks (id) ON DELETE CASCADE,
    fingerprint TEXT NOT NULL,
    -- 1: the extractor has found no answer that it could read, so nothing is stored of the chunk.
    unreadable INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX unreadable_chunks ON read_chunks (fingerprint) WHERE unreadable;
"""

TABLES = " ".join((_NAME, _OTHERS, _TURNS, _STAGED_CHUNKS, _ATTEMPTS))

_TRIED_ORPHANS = """
ALTER TABLE orphans DROP COLUMN since;
ALTER TABLE orphans ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE orphans ADD COLUMN given_up TEXT;
"""

_TENANT_OF_ITEMS = """
ALTER TABLE job_items ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
UPDATE job_items SET tenant = (SELECT tenant FROM jobs WHERE jobs.id = job_items.job);
"""

UPGRADES = {
    9: _NAME + _TRIED_ORPHANS,
    10: _ATTEMPTS,
    11: _STAGED_CHUNKS,
    12: _TENANT_OF_ITEMS + _TURNS,
}
"""The statements that raise a store to each version from the one before. Older stores than these are refused."""
