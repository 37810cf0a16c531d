-- cold_mark --
-- A row's xmin is the transaction that stored it. What was stored up to the newest version of that time is at least as old as its row.
SELECT xmin::text FROM manifest
WHERE tenant = :tenant AND created_at <= :until ORDER BY created_at DESC LIMIT 1

-- count_cold_blocks --
-- Number and bytes of the blocks in rows up to the mark; what is doomed is about to go, and not worth moving.
SELECT count(*), coalesce(sum(length(body)), 0)::bigint
FROM block
WHERE tenant = :tenant AND body IS NOT NULL AND doomed IS NULL
  AND (:mark::text IS NULL OR age(xmin) >= age(:mark::text::xid))

-- block_table_pages --
-- How long the table of blocks is.
SELECT pg_relation_size('block') / current_setting('block_size')::bigint

-- cold_blocks --
-- Those in some pages of the table, in the order in which they were stored: what is read together mostly came together. A range of
-- places is read as such (from PostgreSQL 14 on), so that every page of the table is read once, however many questions that takes.
SELECT id, length(body)
FROM block
WHERE ctid >= :first::text::tid AND ctid < :behind::text::tid AND tenant = :tenant AND body IS NOT NULL AND doomed IS NULL
  AND (:mark::text IS NULL OR age(xmin) >= age(:mark::text::xid))
ORDER BY -age(xmin), id

-- hold_moving_blocks --
-- Commits lock blocks by id, and so does whoever moves them.
SELECT id FROM block WHERE tenant = :tenant AND id = ANY (:ids::bytea[]) ORDER BY id FOR NO KEY UPDATE

-- move_into_pack --
-- From their rows, those that are still there in the same form; `doomed` is the collector's.
UPDATE block
SET body = NULL, upload = :upload, object_offset = moving.object_offset, object_length = moving.object_length
FROM unnest(:ids::bytea[], :codecs::bigint[], :offsets::bigint[], :lengths::bigint[])
    AS moving (id, codec, object_offset, object_length)
WHERE block.tenant = :tenant AND block.id = moving.id AND block.body IS NOT NULL AND block.codec = moving.codec

-- move_between_packs --
-- From one pack to another, those that still lie where their bytes were read; `doomed` is the collector's.
UPDATE block
SET upload = :upload, object_offset = moving.object_offset, object_length = moving.object_length
FROM unnest(
    :ids::bytea[], :codecs::bigint[], :offsets::bigint[], :lengths::bigint[],
    :from_uploads::bytea[], :from_offsets::bigint[]
) AS moving (id, codec, object_offset, object_length, from_upload, from_offset)
WHERE block.tenant = :tenant AND block.id = moving.id AND block.codec = moving.codec
  AND block.upload = moving.from_upload AND block.object_offset = moving.from_offset

-- move_into_row --
-- From packs back to their rows, those that still lie where their bytes were read; `doomed` is the collector's.
UPDATE block
SET body = moving.body, upload = NULL, object_offset = NULL, object_length = NULL
FROM unnest(:ids::bytea[], :codecs::bigint[], :bodies::bytea[], :from_uploads::bytea[], :from_offsets::bigint[])
    AS moving (id, codec, body, from_upload, from_offset)
WHERE block.tenant = :tenant AND block.id = moving.id AND block.codec = moving.codec
  AND block.upload = moving.from_upload AND block.object_offset = moving.from_offset
