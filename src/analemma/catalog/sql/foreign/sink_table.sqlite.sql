-- create_sink_table --
-- Makes the table, with the guard beside each document.
CREATE TABLE IF NOT EXISTS "sink_table" (
    doc_id TEXT NOT NULL PRIMARY KEY,
    ship_seq INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    entity_key TEXT NOT NULL,
    version INTEGER NOT NULL,
    deleted INTEGER NOT NULL,
    body TEXT
)

-- upsert_document --
-- Writes a document that is not older than what is there; no row changes if it is. Its parameters are a SinkRow.
INSERT INTO "sink_table" AS held (doc_id, ship_seq, tenant, entity_key, version, body, deleted)
VALUES (:doc_id, :ship_seq, :tenant, :entity_key, :version, :body, :body IS NULL)
ON CONFLICT (doc_id) DO UPDATE SET
    ship_seq = excluded.ship_seq, tenant = excluded.tenant, entity_key = excluded.entity_key,
    version = excluded.version, deleted = excluded.deleted, body = excluded.body
WHERE excluded.ship_seq >= held.ship_seq  -- guard: table.older.sqlite

-- remove_document --
-- Deletes a document that is not newer than the delete.
DELETE FROM "sink_table" WHERE doc_id = :doc_id AND ship_seq <= :ship_seq  -- guard: table.removed.sqlite

-- find_ship_seq --
-- What a document's guard is.
SELECT ship_seq FROM "sink_table" WHERE doc_id = :doc_id

-- check_sink_table --
-- Fails unless the table has the columns; finds nothing.
SELECT doc_id, ship_seq, tenant, entity_key, version, deleted, body FROM "sink_table" WHERE 0
