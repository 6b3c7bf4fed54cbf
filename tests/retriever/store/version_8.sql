-- The tables of a store of schema version 8.
CREATE TABLE collections (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    created_at REAL NOT NULL, search TEXT,
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
    updated_at REAL NOT NULL, pages TEXT, triplets TEXT,
    UNIQUE (collection, document_id)
);
CREATE INDEX documents_by_fingerprint ON documents (fingerprint);
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    document INTEGER NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
    collection INTEGER NOT NULL,
    position INTEGER NOT NULL,
    text TEXT NOT NULL,
    content_hash TEXT NOT NULL,
    embedding BLOB NOT NULL
, first_line INTEGER, last_line INTEGER, triplets TEXT);
CREATE INDEX chunks_by_document ON chunks (document, position);
CREATE INDEX chunks_by_collection ON chunks (collection);
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
CREATE TABLE job_items (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    job TEXT NOT NULL REFERENCES jobs (id),
    collection INTEGER NOT NULL,
    document_id TEXT NOT NULL,
    line INTEGER,
    bytes INTEGER NOT NULL,
    payload BLOB NOT NULL
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
CREATE TABLE orphans (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    content_hash TEXT NOT NULL,
    collection TEXT NOT NULL,
    document_id TEXT NOT NULL,
    since REAL NOT NULL,
    UNIQUE (tenant, content_hash)
);
CREATE INDEX orphans_by_document ON orphans (tenant, collection, document_id);
CREATE INDEX chunks_by_content ON chunks (content_hash);
CREATE TABLE claimed_keys (
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    body_hash TEXT NOT NULL,
    since REAL NOT NULL,
    PRIMARY KEY (tenant, key)
) WITHOUT ROWID;
CREATE INDEX claimed_keys_by_time ON claimed_keys (since);
CREATE TABLE entities (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    collection INTEGER NOT NULL,
    key TEXT NOT NULL,
    name TEXT NOT NULL,
    embedding BLOB NOT NULL,
    UNIQUE (collection, key)
);
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
CREATE TABLE read_chunks (
    chunk INTEGER PRIMARY KEY REFERENCES chunks (id) ON DELETE CASCADE,
    fingerprint TEXT NOT NULL
, unreadable INTEGER NOT NULL DEFAULT 0);
CREATE INDEX unreadable_chunks ON read_chunks (fingerprint) WHERE unreadable;
