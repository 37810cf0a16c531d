-- abandoned_uploads --
-- Intents whose commit has not come for long, and whether a block lies in them all the same, whichever tenant's.
SELECT tenant, id, object_key, size,
       EXISTS (SELECT 1 FROM tenant AS any_tenant CROSS JOIN block WHERE block.tenant = any_tenant.id AND block.upload = upload.id)
FROM upload
WHERE state = 'temp' AND created_at < :before AND (tenant, id) > (:after_tenant, :after_id)
ORDER BY tenant, id LIMIT :limit

-- claim_upload --
-- Compare-and-set. For an intent against its commit, which goes from the same state: only one of the two finds it; one whose commit is known to
-- have failed is claimed at any age. Blocks come to lie in an upload only in the transaction that makes it ready, so for one that is seen ready
-- "none" stays true. A row that is wrong about its state, its tenant or its object must not take a pack with it in which blocks lie.
UPDATE upload SET state = 'deleting', claimed_at = :now, claimed_from = :state
WHERE tenant = :tenant AND id = :id AND object_key = :object_key  -- guard: upload.claimed.key
-- guard: upload.claimed
-- guard: upload.claimed.blocks
  AND state = :state AND created_at < :before
  AND NOT EXISTS (SELECT 1 FROM tenant AS any_tenant CROSS JOIN block WHERE block.tenant = any_tenant.id AND block.upload = upload.id)

-- ready_uploads --
-- A page of the uploads that commits made count, whether any block lies in them, and if not, whether another tenant's does.
SELECT page.id, page.object_key, page.size, page.used,
       NOT page.used AND EXISTS (
           SELECT 1 FROM tenant AS any_tenant CROSS JOIN block WHERE block.tenant = any_tenant.id AND block.upload = page.id
       )
FROM (
    SELECT id, object_key, size,
           EXISTS (SELECT 1 FROM block WHERE block.tenant = :tenant AND block.upload = upload.id) AS used
    FROM upload WHERE tenant = :tenant AND state = 'ready' AND id > :after
    ORDER BY id LIMIT :limit
) AS page
ORDER BY page.id

-- claimed_uploads --
-- Objects to delete: claimed long enough ago and not deleted yet, or deleted so long ago that a late writer may have brought them back.
-- What failed is the failure queue's. No block comes to lie in what was claimed: one that does shows that the row is wrong.
SELECT tenant, id, object_key, size, claimed_from, coalesce(claimed_at, 0), deleted_at,
       EXISTS (SELECT 1 FROM tenant AS any_tenant CROSS JOIN block WHERE block.tenant = any_tenant.id AND block.upload = upload.id)
FROM upload
WHERE state = 'deleting' AND (tenant, id) > (:after_tenant, :after_id)
  AND ((deleted_at IS NULL AND coalesce(claimed_at, 0) <= :claimed_before) OR deleted_at <= :deleted_before)
  AND NOT EXISTS (SELECT 1 FROM gc_failure WHERE gc_failure.tenant = upload.tenant AND gc_failure.upload = upload.id)
ORDER BY tenant, id LIMIT :limit

-- claimed_upload --
-- One upload, as far as deleting its object asks.
SELECT tenant, id, object_key, size, claimed_from, coalesce(claimed_at, 0), deleted_at,
       EXISTS (SELECT 1 FROM tenant AS any_tenant CROSS JOIN block WHERE block.tenant = any_tenant.id AND block.upload = upload.id)
FROM upload
WHERE tenant = :tenant AND id = :id AND state = 'deleting'

-- note_deleted_object --
-- The object is gone, and the row stays: a request of its writer may still arrive.
UPDATE upload SET deleted_at = :now WHERE tenant = :tenant AND id = :id AND state = 'deleting'

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

-- add_failure --
-- A request to collect one upload; one is enough.
INSERT INTO gc_failure (tenant, upload, kind, visible_at, created_at, error)
VALUES (:tenant, :upload, :kind, :now, :now, :error)
ON CONFLICT (tenant, upload) DO NOTHING

-- visible_failures --
-- Requests that are nobody's now.
SELECT id FROM gc_failure WHERE state = 'waiting' AND visible_at <= :now ORDER BY visible_at, id LIMIT :limit

-- take_failure --
-- Compare-and-set: for a while it is ours. If we die, it comes back by itself.
UPDATE gc_failure SET attempts = attempts + 1, visible_at = :until
WHERE id = :id AND state = 'waiting' AND visible_at <= :now
RETURNING id, tenant, upload, kind, attempts

-- settle_failure --
-- Done.
DELETE FROM gc_failure WHERE id = :id

-- fail_again --
-- It did not work; after the last attempt it is kept for people to look at.
UPDATE gc_failure SET error = :error, state = :state WHERE id = :id

-- retry_failures --
-- Dead ones get all their attempts again: one of them, or all.
UPDATE gc_failure SET state = 'waiting', attempts = 0, visible_at = :now WHERE state = 'dead' AND (id = :id OR :id = 0)

-- forget_failures --
-- Dead for long enough.
DELETE FROM gc_failure WHERE state = 'dead' AND visible_at < :before

-- failures --
-- Oldest first.
SELECT id, tenant, upload, kind, state, attempts, visible_at, created_at, error FROM gc_failure ORDER BY id LIMIT :limit

-- failure_counts [sqlite] --
-- How many wait, and how many are dead.
SELECT coalesce(sum(CASE WHEN state = 'waiting' THEN 1 ELSE 0 END), 0),
       coalesce(sum(CASE WHEN state = 'dead' THEN 1 ELSE 0 END), 0)
FROM gc_failure

-- failure_counts [postgres] --
-- How many wait, and how many are dead.
SELECT count(*) FILTER (WHERE state = 'waiting'), count(*) FILTER (WHERE state = 'dead') FROM gc_failure
