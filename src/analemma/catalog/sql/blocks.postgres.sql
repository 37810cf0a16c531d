-- read_blocks --
-- Those of the ids that exist.
SELECT id, size, codec, body, upload, object_offset, object_length, links
FROM block WHERE tenant = :tenant AND id = ANY (:ids::bytea[])

-- add_blocks --
-- Blocks outside of a commit's one statement; one that is there already is no longer the collector's.
INSERT INTO block (tenant, id, size, codec, body, upload, object_offset, object_length, links)
VALUES (:tenant, :id, :size, :codec, :body, :upload, :object_offset, :object_length, :links)
ON CONFLICT (tenant, id) DO UPDATE SET doomed = NULL WHERE block.doomed IS NOT NULL  -- guard: gc.spared.postgres
