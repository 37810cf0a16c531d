-- cold_mark --
-- Rowids are handed out upwards and a commit stores its manifest's block last, so what was stored up to the newest version of that time
-- has at most the rowid of that block.
SELECT block.rowid
FROM (
    SELECT id FROM manifest WHERE tenant = :tenant AND created_at <= :until ORDER BY created_at DESC LIMIT 1
) AS newest JOIN block ON block.tenant = :tenant AND block.id = newest.id

-- count_cold_blocks --
-- Number and bytes of the blocks in rows up to the mark; what is doomed is about to go, and not worth moving.
SELECT count(*), coalesce(sum(length(body)), 0)
FROM block WHERE rowid <= :mark AND tenant = :tenant AND body IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM doom WHERE doom.tenant = block.tenant AND doom.id = block.id)

-- cold_blocks --
-- A page of them, in the order in which they were stored: what is read together mostly came together.
SELECT id, length(body), rowid
FROM block WHERE rowid > :after AND rowid <= :mark AND tenant = :tenant AND body IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM doom WHERE doom.tenant = block.tenant AND doom.id = block.id)
ORDER BY rowid LIMIT :limit

-- move_into_pack --
-- From its row, if it is still there in the same form; its doom is the collector's.
UPDATE block
SET body = NULL, upload = :upload, object_offset = :object_offset, object_length = :object_length
WHERE tenant = :tenant AND id = :id AND body IS NOT NULL AND codec = :codec

-- move_between_packs --
-- From one pack to another, if it still lies where its bytes were read; its doom is the collector's.
UPDATE block
SET upload = :upload, object_offset = :object_offset, object_length = :object_length
WHERE tenant = :tenant AND id = :id AND upload = :from_upload AND object_offset = :from_offset AND codec = :codec  -- guard: pack.moved.sqlite

-- move_into_row --
-- From a pack back to its row, if it still lies where its bytes were read; its doom is the collector's.
UPDATE block
SET body = :body, upload = NULL, object_offset = NULL, object_length = NULL
WHERE tenant = :tenant AND id = :id AND upload = :from_upload AND object_offset = :from_offset AND codec = :codec

-- database_bytes --
-- The size of the file, and what of it is free for new rows.
SELECT page_count * page_size, freelist_count * page_size
FROM pragma_page_count, pragma_page_size, pragma_freelist_count

-- temporary_in_files --
-- VACUUM makes a temporary copy of the database, which may be larger than memory.
PRAGMA temp_store = FILE

-- vacuum --
-- Writes the database anew without its free pages, then gives them back to the file system; not in a transaction.
VACUUM
