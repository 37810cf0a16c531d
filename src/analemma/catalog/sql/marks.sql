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

-- pins --
-- Every pinned version of a workflow.
SELECT pin.owner, pin.workflow, pin.branch, pin.manifest, manifest.version, pin.reason, pin.created_at
FROM pin JOIN manifest ON manifest.tenant = pin.tenant AND manifest.id = pin.manifest
WHERE pin.tenant = :tenant AND pin.owner = :owner AND pin.workflow = :workflow
ORDER BY pin.created_at, pin.manifest
