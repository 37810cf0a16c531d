-- claimed [text] --
-- Uploads whose objects are to go, and whether blocks lie in them all the same.
SELECT tenant, id, object_key, size, claimed_from,
       EXISTS (SELECT 1 FROM tenant AS any_tenant CROSS JOIN block WHERE block.tenant = any_tenant.id AND block.upload = upload.id),
       coalesce(claimed_at, 0), deleted_at, reason, attempts
FROM upload

-- abandoned_uploads --
-- Intents whose commit has not come for long, and whether a block lies in them all the same, whichever tenant's.
SELECT tenant, id, object_key, size, 'temp',
       EXISTS (SELECT 1 FROM tenant AS any_tenant CROSS JOIN block WHERE block.tenant = any_tenant.id AND block.upload = upload.id)
FROM upload
WHERE state = 'temp' AND created_at < :before AND (tenant, id) > (:after_tenant, :after_id)
ORDER BY tenant, id LIMIT :limit

-- ready_uploads --
-- A page of the uploads that commits made count: whether only another tenant's blocks lie in them, and whether any of their own does.
SELECT :tenant::integer, page.id, page.object_key, page.size, 'ready',
       NOT page.used AND EXISTS (
           SELECT 1 FROM tenant AS any_tenant CROSS JOIN block WHERE block.tenant = any_tenant.id AND block.upload = page.id
       ),
       page.used
FROM (
    SELECT id, object_key, size,
           EXISTS (SELECT 1 FROM block WHERE block.tenant = :tenant AND block.upload = upload.id) AS used
    FROM upload WHERE tenant = :tenant AND state = 'ready' AND id > :after
    ORDER BY id LIMIT :limit
) AS page
ORDER BY page.id

-- claim_upload --
-- Compare-and-set. For an intent against its commit, which goes from the same state: only one of the two finds it; one whose commit is known to
-- have failed is claimed at any age. Blocks come to lie in an upload only in the transaction that makes it ready, so for one that is seen ready
-- "none" stays true. A row that is wrong about its state, its tenant or its object must not take a pack with it in which blocks lie.
UPDATE upload SET state = 'deleting', claimed_at = :now, claimed_from = :state, reason = :reason, error = :error, due_at = :now
WHERE tenant = :tenant AND id = :id AND object_key = :object_key  -- guard: upload.claimed.key
-- guard: upload.claimed
-- guard: upload.claimed.blocks
  AND state = :state AND created_at < :before
  AND NOT EXISTS (SELECT 1 FROM tenant AS any_tenant CROSS JOIN block WHERE block.tenant = any_tenant.id AND block.upload = upload.id)

-- claimed_uploads --
-- Objects to delete: claimed long enough ago and not deleted yet, or deleted so long ago that a late writer may have brought them back.
-- No block comes to lie in what was claimed: one that does shows that the row is wrong.
include claimed
WHERE state = 'deleting' AND (tenant, id) > (:after_tenant, :after_id) AND error IS NULL
  AND ((deleted_at IS NULL AND coalesce(claimed_at, 0) <= :claimed_before) OR deleted_at <= :deleted_before)
ORDER BY tenant, id LIMIT :limit

-- failed_uploads --
-- Objects to delete of which something has failed: their commit, or deleting them. Those that may be tried again now.
include claimed
WHERE error IS NOT NULL AND attempts < :most AND due_at <= :now ORDER BY due_at, tenant, id LIMIT :limit

-- try_upload --
-- Compare-and-set of how often deleting the object was tried: until the next time it is ours. If we die, it comes back by itself.
UPDATE upload SET attempts = :tried, due_at = :due, error = coalesce(:error, error)
WHERE tenant = :tenant AND id = :id AND state = 'deleting' AND attempts = :attempts

-- retry_uploads --
-- What was given up before a time gets all its attempts again: one of them, or all.
UPDATE upload SET attempts = 0, due_at = :now
WHERE error IS NOT NULL AND attempts >= :most AND due_at <= :before AND (:tenant = -1 OR (tenant = :tenant AND id = :id))

-- failures --
-- Oldest first.
SELECT tenant, id, reason, attempts, due_at, coalesce(claimed_at, 0), error
FROM upload WHERE error IS NOT NULL ORDER BY claimed_at, tenant, id LIMIT :limit

-- failure_counts --
-- How many wait, and how many were given up.
SELECT coalesce(sum(CASE WHEN attempts < :most THEN 1 ELSE 0 END), 0), coalesce(sum(CASE WHEN attempts < :most THEN 0 ELSE 1 END), 0)
FROM upload WHERE error IS NOT NULL

-- note_deleted_object --
-- The object is gone, and the row stays: a request of its writer may still arrive.
UPDATE upload SET deleted_at = :now, attempts = 0, error = NULL WHERE tenant = :tenant AND id = :id AND state = 'deleting'

-- forget_upload --
-- Only by whoever has deleted the object.
DELETE FROM upload WHERE tenant = :tenant AND id = :id AND state = 'deleting'

-- add_audit --
-- An object was deleted.
INSERT INTO gc_audit (pass, at, tenant, upload, object_key, size, reason)
VALUES (:number, :now, :tenant, :upload, :object_key, :size, :reason)

-- audit --
-- Newest first.
SELECT pass, at, tenant, upload, object_key, size, reason FROM gc_audit ORDER BY id DESC LIMIT :limit
