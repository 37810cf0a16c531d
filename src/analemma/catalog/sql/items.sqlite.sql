-- hold_space --
-- There is one writer, so nobody else changes items of this namespace until the transaction ends.
SELECT id, newest FROM item_space WHERE tenant = :tenant AND namespace = :namespace

-- items_of_spaces --
-- All items of small namespaces. `spaces` is a JSON list.
SELECT space, place, key, value, created_at, updated_at, expires_at FROM item
WHERE tenant = :tenant AND space IN (SELECT value FROM json_each(:spaces))
  AND (expires_at IS NULL OR expires_at > :now)
ORDER BY space, place

-- vectors_of_spaces --
-- All vectors of small namespaces. `spaces` is a JSON list.
SELECT space, place, dimensions, vectors FROM item
WHERE tenant = :tenant AND space IN (SELECT value FROM json_each(:spaces)) AND vectors IS NOT NULL

-- space_numbers --
-- Numbers for namespaces that may be new. There is one writer, so nobody else takes them.
WITH RECURSIVE turn (number) AS (
    SELECT 1
    UNION ALL
    SELECT number + 1 FROM turn WHERE number < :count
)
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'item_space'), 0) + number FROM turn
