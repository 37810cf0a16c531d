-- set_timeouts --
-- For this connection: how long a statement may take, and how long it may wait for others.
[postgres] SELECT set_config('statement_timeout', :timeout, false), set_config('lock_timeout', :timeout, false)

-- create_sink_table --
-- Makes the table, with the guard beside each document.
CREATE TABLE IF NOT EXISTS "sink_table" (
[sqlite]     doc_id TEXT NOT NULL PRIMARY KEY,
[postgres]     doc_id text COLLATE "C" PRIMARY KEY,
    ship_seq bigint NOT NULL,
    tenant text NOT NULL,
    entity_key text NOT NULL,
    version bigint NOT NULL,
    deleted boolean NOT NULL,
[sqlite]     body TEXT
[postgres]     body jsonb
)

-- upsert_document [sqlite] --
-- Writes a document that is not older than what is there; no row changes if it is. Its parameters are a SinkRow.
INSERT INTO "sink_table" AS held (doc_id, ship_seq, tenant, entity_key, version, body, deleted)
VALUES (:doc_id, :ship_seq, :tenant, :entity_key, :version, :body, :body IS NULL)
ON CONFLICT (doc_id) DO UPDATE SET
    ship_seq = excluded.ship_seq, tenant = excluded.tenant, entity_key = excluded.entity_key,
    version = excluded.version, deleted = excluded.deleted, body = excluded.body
WHERE excluded.ship_seq >= held.ship_seq  -- guard: table.older.sqlite

-- remove_document [sqlite] --
-- Deletes a document that is not newer than the delete.
DELETE FROM "sink_table" WHERE doc_id = :doc_id AND ship_seq <= :ship_seq  -- guard: table.removed.sqlite

-- is_newer [sqlite] --
-- Whether something newer than this is there.
SELECT 1 FROM "sink_table" WHERE doc_id = :doc_id AND ship_seq > :ship_seq

-- upsert_documents [postgres] --
-- Writes what is not older than what is there; gives back the ids that were written. In the order of ids, so that two
-- writers wait for each other and not each for the other.
INSERT INTO "sink_table" AS held (doc_id, ship_seq, tenant, entity_key, version, deleted, body)
SELECT doc_id, ship_seq, tenant, entity_key, version, body IS NULL, body::jsonb
FROM rows(:documents) AS given (doc_id text, ship_seq bigint, tenant text, entity_key text, version bigint, body text)
ORDER BY doc_id COLLATE "C"
ON CONFLICT (doc_id) DO UPDATE SET
    ship_seq = excluded.ship_seq, tenant = excluded.tenant, entity_key = excluded.entity_key,
    version = excluded.version, deleted = excluded.deleted, body = excluded.body
WHERE excluded.ship_seq >= held.ship_seq  -- guard: table.older.postgres
RETURNING doc_id

-- remove_documents [postgres] --
-- Deletes what is not newer than the delete; gives back the ids of what is newer, and stays.
WITH given AS MATERIALIZED (
    SELECT doc_id, ship_seq FROM rows(:documents) AS given (doc_id text, ship_seq bigint)
), found AS MATERIALIZED (
    SELECT held.doc_id, held.ship_seq > given.ship_seq AS is_newer
    FROM "sink_table" AS held JOIN given ON held.doc_id = given.doc_id
    ORDER BY held.doc_id COLLATE "C" FOR UPDATE OF held
), gone AS (
    DELETE FROM "sink_table" AS held USING found WHERE held.doc_id = found.doc_id AND NOT found.is_newer  -- guard: table.removed.postgres
)
SELECT doc_id FROM found WHERE is_newer

-- check_sink_table --
-- Fails unless the table has the columns; finds nothing.
SELECT doc_id, ship_seq, tenant, entity_key, version, deleted, body FROM "sink_table" WHERE 1 = 0
