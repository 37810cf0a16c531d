-- idempotency --
-- What was committed under a caller's key. A key counts for as long as keys are kept, and for as long as its version is there.
SELECT fingerprint, manifest, receipt
FROM idempotency
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND key = :key
  AND (created_at > analemma_now() - :keep
       OR EXISTS (SELECT 1 FROM manifest WHERE manifest.tenant = idempotency.tenant AND manifest.id = idempotency.manifest))
