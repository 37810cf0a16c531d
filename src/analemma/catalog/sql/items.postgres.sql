-- hold_space --
-- Nobody else changes items of this namespace until the transaction ends.
SELECT id, newest FROM item_space WHERE tenant = :tenant AND namespace = :namespace FOR UPDATE

-- items_of_spaces --
-- All items of small namespaces.
SELECT space, place, key, value, created_at, updated_at, expires_at FROM item
WHERE tenant = :tenant AND space = ANY (:spaces::bigint[]) AND (expires_at IS NULL OR expires_at > :now)
ORDER BY space, place

-- vectors_of_spaces --
-- All vectors of small namespaces.
SELECT space, place, dimensions, vectors FROM item
WHERE tenant = :tenant AND space = ANY (:spaces::bigint[]) AND vectors IS NOT NULL

-- space_numbers --
-- Numbers for namespaces that may be new.
SELECT nextval(pg_get_serial_sequence('item_space', 'id')) FROM generate_series(1, :count)
