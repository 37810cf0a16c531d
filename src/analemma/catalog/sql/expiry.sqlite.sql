-- hold_versions --
-- Those of the versions that are there.
SELECT id FROM manifest
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch
  AND version IN (SELECT value FROM json_each(:versions))

-- protected_versions --
-- Those of the versions that a tag or a pin keeps.
SELECT manifest.version FROM manifest
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch
  AND version IN (SELECT value FROM json_each(:versions))
  AND (EXISTS (SELECT 1 FROM tag WHERE tag.tenant = manifest.tenant AND tag.manifest = manifest.id)
       OR EXISTS (SELECT 1 FROM pin WHERE pin.tenant = manifest.tenant AND pin.manifest = manifest.id))

-- remember_expired --
-- So that whoever asks for one of them hears that it has expired.
INSERT INTO expired (tenant, manifest, owner, workflow, branch, version, expired_at)
SELECT tenant, id, owner, workflow, branch, version, :expired_at FROM manifest
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch
  AND version IN (SELECT value FROM json_each(:versions))

-- drop_versions --
-- Only the rows: blocks that nothing else needs go by collection.
DELETE FROM manifest
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch
  AND version IN (SELECT value FROM json_each(:versions))
