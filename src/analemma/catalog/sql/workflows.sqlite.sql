-- add_workflow --
-- A workflow begins with its first branch; later branches find it there.
INSERT INTO workflow (tenant, owner, workflow, name, status, created_at, updated_at)
VALUES (:tenant, :owner, :workflow, :workflow, 'IDLE', :created_at, :created_at)
ON CONFLICT DO NOTHING

-- add_branch --
-- How the branch began.
INSERT INTO branch (tenant, owner, workflow, branch, first_manifest, parent, created_at)
VALUES (:tenant, :owner, :workflow, :branch, :first_manifest, :parent, :created_at)

-- workflows --
-- A page of an owner's workflows, by id, which never changes: a rename between two pages moves nothing.
WITH page AS MATERIALIZED (
    SELECT * FROM workflow
    WHERE tenant = :tenant AND owner = :owner AND workflow > :after
      AND substr(name, 1, length(:name_prefix)) = :name_prefix
      AND (:status IS NULL OR status = :status)
    ORDER BY workflow LIMIT :limit
)
SELECT page.workflow, page.name, page.status, page.created_at, page.updated_at,
       manifest.id, manifest.branch, manifest.version, manifest.segment, manifest.created_at
FROM page JOIN manifest ON manifest.tenant = page.tenant AND manifest.id = (
    SELECT head.manifest FROM head
    WHERE head.tenant = page.tenant AND head.owner = page.owner AND head.workflow = page.workflow
    ORDER BY head.branch <> 'main', head.branch LIMIT 1
)
ORDER BY page.workflow
