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
