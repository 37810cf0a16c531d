-- set_workflow --
-- What is NULL stays as it is.
UPDATE workflow
SET name = coalesce(:name::text, name), status = coalesce(:status::text, status), updated_at = :now
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow

-- workflow --
-- One workflow and where it stands: on its main branch, or else on the first by name.
SELECT workflow.workflow, workflow.name, workflow.status, workflow.created_at, workflow.updated_at,
       manifest.id, manifest.branch, manifest.version, manifest.segment, manifest.created_at
FROM workflow JOIN manifest ON manifest.tenant = workflow.tenant AND manifest.id = (
    SELECT head.manifest FROM head
    WHERE head.tenant = workflow.tenant AND head.owner = workflow.owner AND head.workflow = workflow.workflow
    ORDER BY head.branch <> 'main', head.branch LIMIT 1
)
WHERE workflow.tenant = :tenant AND workflow.owner = :owner AND workflow.workflow = :workflow

-- branches --
-- The branches of a workflow, by age: where each began, and where it stands.
SELECT branch.branch, branch.parent, branch.created_at, head.manifest, head.version, manifest.created_at
FROM branch
JOIN head ON head.tenant = branch.tenant AND head.owner = branch.owner AND head.workflow = branch.workflow
    AND head.branch = branch.branch
JOIN manifest ON manifest.tenant = head.tenant AND manifest.id = head.manifest
WHERE branch.tenant = :tenant AND branch.owner = :owner AND branch.workflow = :workflow
ORDER BY branch.created_at, branch.branch

-- branch --
-- How one branch began.
SELECT first_manifest, parent, created_at
FROM branch WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch

-- children --
-- The next version on the branch, and the first versions of branches that began here.
SELECT id, owner, workflow, branch, version, parent, root, created_at, execution, segment, message
FROM manifest
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch AND version = :next_version
UNION ALL
SELECT manifest.id, manifest.owner, manifest.workflow, manifest.branch, manifest.version, manifest.parent, manifest.root,
       manifest.created_at, manifest.execution, manifest.segment, manifest.message
FROM branch JOIN manifest ON manifest.tenant = branch.tenant AND manifest.id = branch.first_manifest
WHERE branch.tenant = :tenant AND branch.parent = :id

-- workflows --
-- A page of an owner's workflows, by id, which never changes: a rename between two pages moves nothing.
WITH page AS MATERIALIZED (
    SELECT * FROM workflow
[sqlite]     WHERE tenant = :tenant AND owner = :owner AND workflow > :after
[postgres]     WHERE tenant = :tenant AND owner = :owner AND workflow > :after COLLATE "C"
      AND substr(name, 1, length(:name_prefix::text)) = :name_prefix::text
      AND (:status::text IS NULL OR status = :status::text)
[sqlite]     ORDER BY workflow LIMIT :limit
[postgres]     ORDER BY workflow COLLATE "C" LIMIT :limit
)
SELECT page.workflow, page.name, page.status, page.created_at, page.updated_at,
       manifest.id, manifest.branch, manifest.version, manifest.segment, manifest.created_at
FROM page JOIN manifest ON manifest.tenant = page.tenant AND manifest.id = (
    SELECT head.manifest FROM head
    WHERE head.tenant = page.tenant AND head.owner = page.owner AND head.workflow = page.workflow
    ORDER BY head.branch <> 'main', head.branch LIMIT 1
)
[sqlite] ORDER BY page.workflow
[postgres] ORDER BY page.workflow COLLATE "C"
