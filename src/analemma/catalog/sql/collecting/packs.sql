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
SELECT id, size, codec, body, upload, object_offset, object_length, links
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
SELECT id, length(body), rowid
FROM block WHERE rowid > :after AND rowid <= coalesce(:mark, 9223372036854775807) AND tenant = :tenant AND body IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM doom WHERE doom.tenant = block.tenant AND doom.id = block.id)
ORDER BY rowid LIMIT :limit

-- cold_blocks [postgres] --
-- Those in some pages of the table, in the order in which they were stored: what is read together mostly came together. A range of
-- places is read as such (from PostgreSQL 14 on), so that every page of the table is read once, however many questions that takes.
SELECT id, length(body)
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
