-- item --
-- One item of a namespace.
SELECT space, place, namespace, key, value, created_at, updated_at, expires_at
FROM item_space JOIN item ON item.tenant = item_space.tenant AND item.space = item_space.id
WHERE item_space.tenant = :tenant AND namespace = :namespace AND key = :key

-- spaces_below --
-- Namespaces in a range, in the order in which they came to be, and how many items each has at most.
SELECT id, namespace, newest FROM item_space
WHERE tenant = :tenant AND namespace >= :low AND namespace < :high AND id > :after
ORDER BY id LIMIT :limit

-- item_rows [text] --
-- Items that have not expired; with their vectors, if these are wanted.
SELECT space, place, key, value, created_at, updated_at, expires_at, dimensions, CASE WHEN :scored = 1 THEN vectors END
FROM item
WHERE tenant = :tenant AND (expires_at IS NULL OR expires_at > :now)

-- items_of_space --
-- A page of one namespace, in the order in which its items came to be.
include item_rows
AND space = :space AND place > :after
ORDER BY place LIMIT :limit

-- items_of_spaces --
-- All items of small namespaces.
include item_rows
AND space = ANY (:spaces::bigint[])
ORDER BY space, place

-- item_namespaces --
-- Namespaces in a range that have an item which has not expired, in their order. Not EXISTS: a plan made while there are
-- no items would read all of them.
SELECT namespace FROM item_space
WHERE tenant = :tenant AND namespace >= :low AND namespace > :after AND namespace < :high
  AND (
    SELECT 1 FROM item
    WHERE item.tenant = item_space.tenant AND item.space = item_space.id AND (expires_at IS NULL OR expires_at > :now)
    LIMIT 1
  ) = 1
ORDER BY namespace LIMIT :limit

-- enter_space --
-- Holds a namespace, made if it is new, and takes places for items in it. Its number may have been taken before.
INSERT INTO item_space (id, tenant, namespace, newest)
[sqlite] VALUES (:id, :tenant, :namespace, :count)
[postgres] VALUES (coalesce(:id, nextval(pg_get_serial_sequence('{schema}.item_space', 'id'))), :tenant, :namespace, :count)
ON CONFLICT (tenant, namespace) DO UPDATE SET newest = item_space.newest + excluded.newest
RETURNING id, newest

-- put_item --
-- A new item, or another value for one that keeps its place; one that has expired is a new one.
INSERT INTO item (tenant, space, key, place, created_at, updated_at, ttl, expires_at, dimensions, value, vectors)
VALUES (:tenant, :space, :key, :place, :created_at, :updated_at, :ttl, :expires_at, :dimensions, :value, :vectors)
ON CONFLICT (tenant, space, key) DO UPDATE SET
    place = CASE WHEN item.expires_at <= excluded.updated_at THEN excluded.place ELSE item.place END,
    created_at = CASE WHEN item.expires_at <= excluded.updated_at THEN excluded.created_at ELSE item.created_at END,
    updated_at = excluded.updated_at,
    ttl = excluded.ttl,
    expires_at = excluded.expires_at,
    dimensions = excluded.dimensions,
    value = excluded.value,
    vectors = excluded.vectors

-- delete_item --
-- One item goes.
DELETE FROM item WHERE tenant = :tenant AND space = :space AND key = :key

-- leave_space --
-- A namespace without items is none. Its row is held, so nobody adds one meanwhile.
DELETE FROM item_space
WHERE tenant = :tenant AND id = :space AND NOT EXISTS (SELECT 1 FROM item WHERE item.space = item_space.id)

-- refresh_item --
-- Begins an item's time anew, unless it is over.
UPDATE item SET expires_at = :now + ttl
WHERE tenant = :tenant AND space = :space AND key = :key AND ttl IS NOT NULL AND expires_at > :floor

-- spaces_with_expired --
-- Namespaces in which something has expired.
SELECT DISTINCT namespace FROM item JOIN item_space ON item_space.id = item.space
WHERE item.tenant = :tenant AND expires_at <= :now
ORDER BY namespace LIMIT :limit

-- delete_expired --
-- Some of a namespace's items that have expired. Asked twice: one that is read while this waits for it has more time.
DELETE FROM item
WHERE tenant = :tenant AND space = :space AND expires_at <= :now AND key IN (
    SELECT key FROM item WHERE tenant = :tenant AND space = :space AND expires_at <= :now ORDER BY place LIMIT :limit
)

-- hold_space --
-- Nobody else changes items of this namespace until the transaction ends.
SELECT id, newest FROM item_space WHERE tenant = :tenant AND namespace = :namespace FOR UPDATE

-- space_numbers [sqlite] --
-- Numbers for namespaces that may be new. There is one writer, so nobody else takes them.
WITH RECURSIVE turn (number) AS (
    SELECT 1
    UNION ALL
    SELECT number + 1 FROM turn WHERE number < :count
)
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'item_space'), 0) + number FROM turn

-- space_numbers [postgres] --
-- Numbers for namespaces that may be new.
SELECT nextval(pg_get_serial_sequence('{schema}.item_space', 'id')) FROM generate_series(1, :count)
