-- hold_versions --
-- Those of the versions that are there, each held once no running commit builds on it any more. In the order in which commits lock them.
SELECT id FROM manifest
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch
  AND version = ANY (:versions::bigint[])
[postgres] ORDER BY id
FOR UPDATE  -- guard: expiry.lock.postgres

-- protected_versions --
-- Those of the versions that a tag, a pin, or a run that made them and is not over keeps; of one that failed, the one that it stands on.
SELECT manifest.version FROM manifest
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch
  AND version = ANY (:versions::bigint[])
  AND (EXISTS (SELECT 1 FROM tag WHERE tag.tenant = manifest.tenant AND tag.manifest = manifest.id)  -- guard: expiry.tag
       OR EXISTS (SELECT 1 FROM pin WHERE pin.tenant = manifest.tenant AND pin.manifest = manifest.id)  -- guard: expiry.pin
       OR EXISTS (SELECT 1 FROM run WHERE run.tenant = manifest.tenant AND run.execution = manifest.execution  -- guard: expiry.run
                  AND (run.ended_at IS NULL OR (run.status = 'FAILED' AND run.head = manifest.id))))

-- remember_expired --
-- So that whoever asks for one of them hears that it has expired.
INSERT INTO expired (tenant, manifest, owner, workflow, branch, version, expired_at)
SELECT tenant, id, owner, workflow, branch, version, :expired_at FROM manifest
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch
  AND version = ANY (:versions::bigint[])

-- drop_versions --
-- Only the rows: blocks that nothing else needs go by collection.
DELETE FROM manifest
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch
  AND version = ANY (:versions::bigint[])
