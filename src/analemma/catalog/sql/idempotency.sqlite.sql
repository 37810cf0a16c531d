-- idempotency --
-- What was committed under a caller's key. A key counts for as long as keys are kept, and for as long as its version is there.
SELECT fingerprint, manifest, receipt
FROM idempotency
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND key = :key
  AND (created_at > (SELECT us FROM moment) - :keep  -- guard: key.counts.sqlite
       OR EXISTS (SELECT 1 FROM manifest WHERE manifest.tenant = idempotency.tenant AND manifest.id = idempotency.manifest))

-- drop_old_key --
-- A key that counts no more is in the way of nobody.
DELETE FROM idempotency
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND key = :key AND created_at <= (SELECT us FROM moment) - :keep
  AND NOT EXISTS (SELECT 1 FROM manifest WHERE manifest.tenant = idempotency.tenant AND manifest.id = idempotency.manifest)

-- add_idempotency --
-- Only successes are remembered.
INSERT INTO idempotency (tenant, owner, workflow, key, fingerprint, manifest, receipt, created_at)
VALUES (:tenant, :owner, :workflow, :key, :fingerprint, :manifest, :receipt, (SELECT us FROM moment))
