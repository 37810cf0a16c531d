-- database_now --
-- Microseconds since 1970-01-01Z; SQLite counts milliseconds.
SELECT CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS integer) * 1000

-- gc_hold_lease --
-- There is one writer, so what it says stays so until the transaction ends.
SELECT pass FROM gc

-- gc_clear_dooms --
-- Blocks that are needed are not about to go. `ids` is every id one after the other, 32 bytes each, and `places` a list as long as there
-- are ids, whatever is in it: counting up its places takes a third of the time that a recursion does.
DELETE FROM doom
WHERE tenant = :tenant AND id IN (
    SELECT substr(:ids, key * 32 + 1, 32) FROM json_each(:places)
)

-- gc_doom --
-- Blocks that nothing in the snapshot leads to, and that are there; those that are doomed already keep their number.
INSERT INTO doom (tenant, id, pass)
SELECT block.tenant, block.id, :pass
FROM json_each(:places) CROSS JOIN block ON block.tenant = :tenant AND block.id = substr(:ids, key * 32 + 1, 32)
WHERE true
ON CONFLICT (tenant, id) DO NOTHING

-- gc_delete --
-- Those that an earlier pass doomed, if that is still so. Answers the stored bytes of each.
DELETE FROM block
WHERE tenant = :tenant AND id IN (
    -- guard: gc.delete.sqlite
    SELECT doom.id
    FROM json_each(:places) CROSS JOIN doom ON doom.tenant = :tenant AND doom.id = substr(:ids, key * 32 + 1, 32)
    WHERE doom.pass < :limit
)
RETURNING coalesce(object_length, length(body))

-- gc_drop_dooms --
-- Of the blocks that `gc_delete` deleted, in the same transaction: a doom must not wait for a block that is stored anew.
DELETE FROM doom
WHERE tenant = :tenant AND id IN (
    SELECT substr(:ids, key * 32 + 1, 32) FROM json_each(:places)
) AND pass < :limit

-- scan_doomed --
-- Every doomed block, in the order of ids.
SELECT id, pass FROM doom WHERE tenant = :tenant AND id > :after ORDER BY id LIMIT :limit

-- deletion_facts --
-- What deleting these would free, by the object that they lie in.
SELECT upload, count(*), sum(coalesce(object_length, length(body)))
FROM json_each(:places) CROSS JOIN block ON block.tenant = :tenant AND block.id = substr(:ids, key * 32 + 1, 32)
GROUP BY upload
