-- forget_keys --
-- Keys that count no more. Looked at again: whoever used one meanwhile has it anew.
DELETE FROM idempotency
-- guard: key.forgotten
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND key = :key AND created_at <= :before
  AND NOT EXISTS (SELECT 1 FROM manifest WHERE manifest.tenant = idempotency.tenant AND manifest.id = idempotency.manifest)

-- old_keys --
-- A page of the keys that were remembered up to a time, oldest first, and whether the version of each is gone.
SELECT created_at, owner, workflow, key,
       NOT EXISTS (SELECT 1 FROM manifest WHERE manifest.tenant = idempotency.tenant AND manifest.id = idempotency.manifest)
FROM idempotency
WHERE tenant = :tenant AND created_at <= :before AND (created_at, owner, workflow, key) > (:after_time, :after_owner, :after_workflow, :after_key)
ORDER BY created_at, owner, workflow, key LIMIT :limit

-- idempotency --
-- What was committed under a caller's key. A key counts for as long as keys are kept, and for as long as its version is there.
SELECT fingerprint, manifest, receipt
FROM idempotency
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND key = :key
  AND (created_at > analemma_now() - :keep  -- guard: key.counts
       OR EXISTS (SELECT 1 FROM manifest WHERE manifest.tenant = idempotency.tenant AND manifest.id = idempotency.manifest))
