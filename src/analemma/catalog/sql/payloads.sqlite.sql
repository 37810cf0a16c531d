-- leases --
-- `ids` is every id one after the other, 16 bytes each.
WITH RECURSIVE wanted (place) AS (
    SELECT 0 WHERE :count > 0
    UNION ALL
    SELECT place + 1 FROM wanted WHERE place + 1 < :count
)
SELECT payload.id, owner, workflow, execution, root, size, field, created_at, released_at, renewed_at,
       released_at IS NULL AND renewed_at < (SELECT us FROM moment) - :unused
FROM wanted CROSS JOIN payload ON payload.tenant = :tenant AND payload.id = substr(:ids, place * 16 + 1, 16)

-- hold_leases --
-- Those of the leases that are live, and whether each was not used for a while. There is one writer, so they stay so until the transaction
-- ends.
WITH RECURSIVE wanted (place) AS (
    SELECT 0 WHERE :count > 0
    UNION ALL
    SELECT place + 1 FROM wanted WHERE place + 1 < :count
)
SELECT payload.id, renewed_at < (SELECT us FROM moment) - :unused
FROM wanted CROSS JOIN payload ON payload.tenant = :tenant AND payload.id = substr(:ids, place * 16 + 1, 16)
WHERE released_at IS NULL  -- guard: lease.held.sqlite

-- renew_leases --
-- Somebody uses them.
WITH RECURSIVE wanted (place) AS (
    SELECT 0 WHERE :count > 0
    UNION ALL
    SELECT place + 1 FROM wanted WHERE place + 1 < :count
)
UPDATE payload SET renewed_at = (SELECT us FROM moment)
WHERE tenant = :tenant AND id IN (SELECT substr(:ids, place * 16 + 1, 16) FROM wanted) AND released_at IS NULL

-- add_lease --
-- A pointer's right to its tree. Its id is random, so one that is there was written by the same request.
INSERT INTO payload (tenant, id, owner, workflow, execution, root, size, field, created_at, renewed_at)
VALUES (:tenant, :id, :owner, :workflow, :execution, :root, :size, :field, :created_at, (SELECT us FROM moment))
ON CONFLICT (tenant, id) DO NOTHING
