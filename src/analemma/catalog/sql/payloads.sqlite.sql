-- leases --
-- `ids` is every id one after the other, 16 bytes each.
WITH RECURSIVE wanted (place) AS (
    SELECT 0 WHERE :count > 0
    UNION ALL
    SELECT place + 1 FROM wanted WHERE place + 1 < :count
)
SELECT payload.id, owner, workflow, execution, root, size, field, created_at, released_at
FROM wanted CROSS JOIN payload ON payload.tenant = :tenant AND payload.id = substr(:ids, place * 16 + 1, 16)

-- hold_leases --
-- Those of the leases that are live. There is one writer, so they stay so until the transaction ends.
WITH RECURSIVE wanted (place) AS (
    SELECT 0 WHERE :count > 0
    UNION ALL
    SELECT place + 1 FROM wanted WHERE place + 1 < :count
)
SELECT payload.id
FROM wanted CROSS JOIN payload ON payload.tenant = :tenant AND payload.id = substr(:ids, place * 16 + 1, 16)
WHERE released_at IS NULL
