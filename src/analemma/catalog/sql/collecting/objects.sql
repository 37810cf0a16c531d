-- claimed [text] --
-- Uploads whose objects are to go, and whether blocks lie in them all the same, whichever tenant's.
SELECT tenant, id, object_key, size, coalesce(claimed_from, state),
       EXISTS (SELECT 1 FROM tenant AS any_tenant CROSS JOIN block WHERE block.tenant = any_tenant.id AND block.upload = upload.id),
       coalesce(claimed_at, 0), deleted_at, reason, attempts
FROM upload

-- abandoned_uploads --
-- Intents whose commit has not come for long.
include claimed
WHERE state = 'temp' AND created_at < :before AND (tenant, id) > (:after_tenant, :after_id)
ORDER BY tenant, id LIMIT :limit

-- ready_uploads --
-- A page of the uploads that commits made count: whether only another tenant's blocks lie in them, and whether any of their own does.
SELECT :tenant::integer, page.id, page.object_key, page.size, 'ready',
       NOT page.used AND EXISTS (
           SELECT 1 FROM tenant AS any_tenant CROSS JOIN block WHERE block.tenant = any_tenant.id AND block.upload = page.id
       ),
       page.used
FROM (
    SELECT id, object_key, size,
           EXISTS (SELECT 1 FROM block WHERE block.tenant = :tenant AND block.upload = upload.id) AS used
    FROM upload WHERE tenant = :tenant AND state = 'ready' AND id > :after
    ORDER BY id LIMIT :limit
) AS page
ORDER BY page.id

-- claim_upload --
-- Compare-and-set. For an intent against its commit, which goes from the same state: only one of the two finds it; one whose commit is known to
-- have failed is claimed at any age. Blocks come to lie in an upload only in the transaction that makes it ready, so for one that is seen ready
-- "none" stays true. A row that is wrong about its state, its tenant or its object must not take a pack with it in which blocks lie.
UPDATE upload SET state = 'deleting', claimed_at = :now, claimed_from = :state, reason = :reason, error = :error, due_at = :now
WHERE tenant = :tenant AND id = :id AND object_key = :object_key  -- guard: upload.claimed.key
-- guard: upload.claimed
-- guard: upload.claimed.blocks
  AND state = :state AND created_at < :before
  AND NOT EXISTS (SELECT 1 FROM tenant AS any_tenant CROSS JOIN block WHERE block.tenant = any_tenant.id AND block.upload = upload.id)

-- claimed_uploads --
-- Objects to delete: claimed long enough ago and not deleted yet, or deleted so long ago that a late writer may have brought them back.
-- No block comes to lie in what was claimed: one that does shows that the row is wrong.
include claimed
WHERE state = 'deleting' AND (tenant, id) > (:after_tenant, :after_id) AND error IS NULL
  AND ((deleted_at IS NULL AND coalesce(claimed_at, 0) <= :claimed_before) OR deleted_at <= :deleted_before)
ORDER BY tenant, id LIMIT :limit

-- failed_uploads --
-- Objects to delete of which something has failed: their commit, or deleting them. Those that may be tried again now.
include claimed
WHERE error IS NOT NULL AND attempts < :most AND due_at <= :now ORDER BY due_at, tenant, id LIMIT :limit

-- try_upload --
-- Compare-and-set of how often deleting the object was tried: until the next time it is ours. If we die, it comes back by itself.
UPDATE upload SET attempts = :tried, due_at = :due, error = coalesce(:error, error)
WHERE tenant = :tenant AND id = :id AND state = 'deleting' AND attempts = :attempts

-- retry_uploads --
-- What was given up before a time gets all its attempts again, if it is among these.
UPDATE upload SET attempts = 0, due_at = :now
WHERE error IS NOT NULL AND attempts >= :most AND due_at <= :before AND id BETWEEN :first AND :last

-- failures --
-- Oldest first.
SELECT tenant, id, reason, attempts, due_at, coalesce(claimed_at, 0), error
FROM upload WHERE error IS NOT NULL ORDER BY claimed_at, tenant, id LIMIT :limit

-- failure_counts --
-- How many wait, and how many were given up.
SELECT coalesce(sum(CASE WHEN attempts < :most THEN 1 ELSE 0 END), 0), coalesce(sum(CASE WHEN attempts < :most THEN 0 ELSE 1 END), 0)
FROM upload WHERE error IS NOT NULL

-- note_deleted_object --
-- The object is gone, and the row stays: a request of its writer may still arrive.
UPDATE upload SET deleted_at = :now, attempts = 0, error = NULL WHERE tenant = :tenant AND id = :id AND state = 'deleting'

-- forget_upload --
-- Only by whoever has deleted the object.
DELETE FROM upload WHERE tenant = :tenant AND id = :id AND state = 'deleting'

-- add_audit --
-- An object was deleted.
INSERT INTO gc_audit (pass, at, tenant, upload, object_key, size, reason)
VALUES (:number, :at_us, :tenant, :upload, :object_key, :size, :reason)

-- audit --
-- Newest first.
SELECT pass, at, tenant, upload, object_key, size, reason FROM gc_audit ORDER BY id DESC LIMIT :limit

-- pack_usage --
-- A page of finished uploads by id, each with the blocks that lie in it and their bytes.
SELECT page.id, page.size,
       (SELECT count(*) FROM block WHERE block.tenant = :tenant AND block.upload = page.id),
       (SELECT coalesce(sum(object_length), 0) FROM block WHERE block.tenant = :tenant AND block.upload = page.id)
FROM (
    SELECT id, size FROM upload WHERE tenant = :tenant AND state = 'ready' AND id > :after ORDER BY id LIMIT :limit
) AS page
ORDER BY page.id

-- packed_blocks --
-- A page of what lies in one upload, in the order in which it lies there.
SELECT object_offset, id, size, codec, body, upload, object_offset, object_length, links
FROM block WHERE tenant = :tenant AND upload = :upload AND object_offset > :after
ORDER BY object_offset LIMIT :limit

-- pack_contents --
-- How many blocks lie in one upload, and their bytes.
SELECT count(*), coalesce(sum(object_length), 0) FROM block WHERE tenant = :tenant AND upload = :upload

-- finish_pack --
-- Compare-and-set; no row touched means that the collector was faster.
UPDATE upload SET state = 'ready' WHERE tenant = :tenant AND id = :id AND state = 'temp'  -- guard: upload.packed

-- cold_mark [sqlite] --
-- Rowids are handed out upwards and a commit stores its manifest's block last, so what was stored up to the newest version of that time
-- has at most the rowid of that block.
SELECT block.rowid
FROM (
    SELECT id FROM manifest WHERE tenant = :tenant AND created_at <= :until ORDER BY created_at DESC LIMIT 1
) AS newest JOIN block ON block.tenant = :tenant AND block.id = newest.id

-- cold_mark [postgres] --
-- A row's xmin is the transaction that stored it. What was stored up to the newest version of that time is at least as old as its row.
SELECT xmin::text FROM manifest
WHERE tenant = :tenant AND created_at <= :until ORDER BY created_at DESC LIMIT 1

-- count_cold_blocks [sqlite] --
-- Number and bytes of the blocks in rows up to the mark; what is doomed is about to go, and not worth moving.
SELECT count(*), coalesce(sum(length(body)), 0)
FROM block WHERE rowid <= coalesce(:mark, 9223372036854775807) AND tenant = :tenant AND body IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM doom WHERE doom.tenant = block.tenant AND doom.id = block.id)

-- count_cold_blocks [postgres] --
-- Number and bytes of the blocks in rows up to the mark; what is doomed is about to go, and not worth moving.
SELECT count(*), coalesce(sum(length(body)), 0)::bigint
FROM block
WHERE tenant = :tenant AND body IS NOT NULL AND doomed IS NULL
  AND (:mark::text IS NULL OR age(xmin) >= age(:mark::text::xid))

-- block_table_pages [postgres] --
-- How long the table of blocks is.
SELECT pg_relation_size('{schema}.block') / current_setting('block_size')::bigint

-- cold_blocks [sqlite] --
-- A page of them, in the order in which they were stored: what is read together mostly came together.
SELECT rowid, id, length(body)
FROM block WHERE rowid > :after AND rowid <= coalesce(:mark, 9223372036854775807) AND tenant = :tenant AND body IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM doom WHERE doom.tenant = block.tenant AND doom.id = block.id)
ORDER BY rowid LIMIT :limit

-- cold_blocks [postgres] --
-- Those in some pages of the table, in the order in which they were stored: what is read together mostly came together. A range of
-- places is read as such (from PostgreSQL 14 on), so that every page of the table is read once, however many questions that takes.
SELECT NULL, id, length(body)
FROM block
WHERE ctid >= :first::text::tid AND ctid < :behind::text::tid AND tenant = :tenant AND body IS NOT NULL AND doomed IS NULL
  AND (:mark::text IS NULL OR age(xmin) >= age(:mark::text::xid))
ORDER BY -age(xmin), id

-- hold_moving_blocks --
-- Commits lock blocks by id, and so does whoever moves them.
[postgres] SELECT id FROM block WHERE tenant = :tenant AND id = ANY (:ids::bytea[]) ORDER BY id FOR NO KEY UPDATE

-- move_into_pack [sqlite] --
-- From its row, or from a pack, if it still lies in the same form where its bytes were read; its doom is the collector's.
UPDATE block
SET body = NULL, upload = :upload, object_offset = :object_offset, object_length = :object_length
WHERE tenant = :tenant AND id = :id AND codec = :codec
  AND upload IS :from_upload AND object_offset IS :from_offset  -- guard: pack.moved.sqlite

-- move_into_pack [postgres] --
-- From their rows, or from packs, those that still lie in the same form where their bytes were read; `doomed` is the collector's.
UPDATE block
SET body = NULL, upload = :upload, object_offset = move.object_offset, object_length = move.object_length
FROM rows(:moves) AS move (
    object_offset bigint, object_length bigint, id bytea, codec bigint, from_upload bytea, from_offset bigint
)
WHERE block.tenant = :tenant AND block.id = move.id AND block.codec = move.codec
  AND block.upload IS NOT DISTINCT FROM move.from_upload AND block.object_offset IS NOT DISTINCT FROM move.from_offset

-- database_bytes [sqlite] --
-- The size of the file, and what of it is free for new rows.
SELECT page_count * page_size, freelist_count * page_size
FROM pragma_page_count, pragma_page_size, pragma_freelist_count

-- temporary_in_files [sqlite] --
-- VACUUM makes a temporary copy of the database, which may be larger than memory.
PRAGMA temp_store = FILE

-- vacuum [sqlite] --
-- Writes the database anew without its free pages, then gives them back to the file system; not in a transaction.
VACUUM

-- object_claim --
-- What this catalog knows of its objects' marker.
SELECT id, object_generation, object_token, object_intent, object_claimed FROM store

-- intend_generation --
-- Compare-and-set. An intent that is there stays: whoever recorded it may be about to write it to the marker.
UPDATE store SET object_intent = coalesce(object_intent, :intent)
WHERE object_generation = :generation AND coalesce(object_token, '') = :token  -- guard: owner.intended

-- confirm_generation --
-- The marker says what was intended; no row touched means that somebody else has confirmed it.
UPDATE store
SET object_generation = object_generation + 1, object_token = object_intent, object_intent = NULL, object_claimed = :place
WHERE object_generation = :generation AND object_intent = :intent  -- guard: owner.confirmed

-- adopt_generation --
-- Compare-and-set: go on from the generation of another catalog's marker.
UPDATE store SET object_generation = :generation, object_token = :token, object_intent = :intent
WHERE object_generation = :was AND coalesce(object_token, '') = :was_token  -- guard: owner.adopted

-- object_folders --
-- Every folder in which this catalog may have objects, and for which catalog it was made.
SELECT name, catalog FROM object_folder ORDER BY name

-- add_object_folder --
-- Two programs may begin at once; each may write to its own.
INSERT INTO object_folder (name, catalog) VALUES (:name, :catalog)

-- needed_uploads --
-- The uploads in which blocks of a tenant lie, whatever the rows of uploads say.
SELECT DISTINCT upload FROM block
WHERE tenant = :tenant AND upload IS NOT NULL AND upload > :after
ORDER BY upload LIMIT :limit

-- needed_archives --
-- Every archive that is or may become a workspace's.
SELECT tenant.name, archive_unit.workspace, archive_unit.op_id
FROM archive_unit JOIN tenant ON tenant.id = archive_unit.tenant
WHERE archive_unit.state <> 'claimed'
ORDER BY archive_unit.number

-- forget_uploads --
-- No block lies in them. A writer that has not committed yet hears of it when it does.
DELETE FROM upload
WHERE NOT EXISTS (SELECT 1 FROM tenant JOIN block ON block.tenant = tenant.id AND block.upload = upload.id)

-- detach_objects --
-- Compare-and-set: from now on the objects are elsewhere, or there are none, and no marker was seen there.
UPDATE store
SET objects = :place, object_generation = 0, object_token = NULL, object_intent = NULL, object_claimed = NULL
WHERE coalesce(objects, '') = :before

-- forget_object_folders --
-- What lay below them was copied with the rest.
DELETE FROM object_folder

-- database_oid [postgres] --
-- What tells this store from its copies on the same server, and whether this role may ask for the server's identifier. The first schema goes
-- without saying.
SELECT oid::text || CASE '{schema}' WHEN '"public"' THEN '' ELSE '.' || to_regnamespace('{schema}')::oid::text END,
       has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')
FROM pg_database WHERE datname = current_database()

-- system_identifier [postgres] --
-- What tells this server, with its replicas, from every other.
SELECT system_identifier FROM pg_catalog.pg_control_system()
