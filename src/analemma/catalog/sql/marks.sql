-- add_tag --
-- No row touched means that the name is taken.
INSERT INTO tag (tenant, owner, workflow, name, branch, manifest, message, created_at)
VALUES (:tenant, :owner, :workflow, :name, :branch, :manifest, :message, :created_at)
ON CONFLICT DO NOTHING

-- move_tag --
-- Compare-and-set; no row touched means that the tag is elsewhere by now.
UPDATE tag SET branch = :branch, manifest = :manifest, message = :message, created_at = :created_at
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND name = :name AND manifest = :expected_manifest  -- guard: tag.moved

-- drop_tag --
-- Compare-and-set; no row touched means that the tag is elsewhere by now.
DELETE FROM tag
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND name = :name AND manifest = :manifest  -- guard: tag.dropped

-- tag --
-- Where a tag is.
SELECT tag.name, tag.owner, tag.workflow, tag.branch, tag.manifest, manifest.version, tag.message, tag.created_at
FROM tag JOIN manifest ON manifest.tenant = tag.tenant AND manifest.id = tag.manifest
WHERE tag.tenant = :tenant AND tag.owner = :owner AND tag.workflow = :workflow AND tag.name = :name

-- tags --
-- Every tag of a workflow.
SELECT tag.name, tag.owner, tag.workflow, tag.branch, tag.manifest, manifest.version, tag.message, tag.created_at
FROM tag JOIN manifest ON manifest.tenant = tag.tenant AND manifest.id = tag.manifest
WHERE tag.tenant = :tenant AND tag.owner = :owner AND tag.workflow = :workflow
ORDER BY tag.created_at, tag.name

-- put_pin --
-- Pinning again replaces the reason.
INSERT INTO pin (tenant, manifest, owner, workflow, branch, reason, created_at)
VALUES (:tenant, :manifest, :owner, :workflow, :branch, :reason, :created_at)
ON CONFLICT (tenant, manifest) DO UPDATE SET reason = excluded.reason, created_at = excluded.created_at

-- drop_pin --
-- No row touched means that there is no pin.
DELETE FROM pin WHERE tenant = :tenant AND manifest = :manifest

-- pins --
-- Every pinned version of a workflow.
SELECT pin.owner, pin.workflow, pin.branch, pin.manifest, manifest.version, pin.reason, pin.created_at
FROM pin JOIN manifest ON manifest.tenant = pin.tenant AND manifest.id = pin.manifest
WHERE pin.tenant = :tenant AND pin.owner = :owner AND pin.workflow = :workflow
ORDER BY pin.created_at, pin.manifest
