-- history_decided --
-- As in history.sql, but each version is looked up by its id: a plan made from old statistics would as soon read all versions of the branch.
SELECT manifest.id, manifest.owner, manifest.workflow, manifest.branch, manifest.version, manifest.parent, manifest.root,
       manifest.created_at, manifest.execution, manifest.segment, manifest.message
FROM decision CROSS JOIN LATERAL (
    SELECT * FROM manifest AS found
    WHERE found.tenant = decision.tenant AND found.id = decision.manifest
    OFFSET 0
) AS manifest
WHERE decision.tenant = :tenant AND decision.owner = :owner AND decision.workflow = :workflow
  AND decision.branch = :branch AND decision.version < :before_version AND decision.decision = :decision
  AND manifest.version = decision.version AND manifest.owner = decision.owner AND manifest.workflow = decision.workflow
  AND manifest.branch = decision.branch
  AND (CAST(:execution AS text) IS NULL OR manifest.execution = :execution)
  AND (CAST(:segment AS bigint) IS NULL OR manifest.segment = :segment)
  AND manifest.created_at >= :since AND manifest.created_at < :until
ORDER BY decision.version DESC LIMIT :limit
