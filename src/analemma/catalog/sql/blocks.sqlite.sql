-- read_blocks --
-- `ids` is every id one after the other, 32 bytes each: a statement without limit on their number.
WITH RECURSIVE wanted (place) AS (
    SELECT 0 WHERE :count > 0
    UNION ALL
    SELECT place + 1 FROM wanted WHERE place + 1 < :count
)
SELECT block.id, size, codec, body, upload, object_offset, object_length, links
FROM wanted CROSS JOIN block ON block.tenant = :tenant AND block.id = substr(:ids, place * 32 + 1, 32)

-- add_blocks --
-- Those that are not there yet.
INSERT INTO block (tenant, id, size, codec, body, upload, object_offset, object_length, links)
VALUES (:tenant, :id, :size, :codec, :body, :upload, :object_offset, :object_length, :links)
ON CONFLICT (tenant, id) DO NOTHING

-- blocks_just_added --
-- Rowids are handed out upwards, so the newest `count` rows are the ones that this transaction's last insert made.
SELECT id FROM block WHERE rowid > (SELECT max(rowid) FROM block) - :count

-- spare_doomed_block --
-- A block that is emitted again is no longer the collector's.
DELETE FROM doom WHERE tenant = :tenant AND id = :id
