-- workflows --
-- A page of an owner's workflows, by id, which never changes: a rename between two pages moves nothing.
WITH page AS MATERIALIZED (
    SELECT * FROM workflow
    WHERE tenant = :tenant AND owner = :owner AND workflow > :after COLLATE "C"
      AND substr(name, 1, length(:name_prefix::text)) = :name_prefix::text
      AND (:status::text IS NULL OR status = :status::text)
    ORDER BY workflow COLLATE "C" LIMIT :limit
)
SELECT page.workflow, page.name, page.status, page.created_at, page.updated_at,
       manifest.id, manifest.branch, manifest.version, manifest.segment, manifest.created_at
FROM page JOIN manifest ON manifest.tenant = page.tenant AND manifest.id = (
    SELECT head.manifest FROM head
    WHERE head.tenant = page.tenant AND head.owner = page.owner AND head.workflow = page.workflow
    ORDER BY head.branch <> 'main', head.branch LIMIT 1
)
ORDER BY page.workflow COLLATE "C"

-- set_workflow --
-- What is NULL stays as it is.
UPDATE workflow
SET name = coalesce(:name::text, name), status = coalesce(:status::text, status), updated_at = :now
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow
