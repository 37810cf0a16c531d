-- source_problems --
-- States that became no entity, by the page.
SELECT owner, workflow, branch, source, version, entity_type, entity_id, problem, updated_at
FROM state_source
WHERE tenant = :tenant AND problem IS NOT NULL AND (:source::text IS NULL OR source = :source::text)
  AND (owner, workflow, branch, source) > (:after_owner, :after_workflow, :after_branch, :after_source)
ORDER BY owner, workflow, branch, source LIMIT :limit
