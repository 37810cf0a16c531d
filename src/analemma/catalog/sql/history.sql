-- head --
-- Where one branch stands.
SELECT manifest, version, journal_seq, journal_tip
FROM head WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch

-- manifest --
-- One version, by its id.
SELECT id, owner, workflow, branch, version, parent, root, created_at, execution, segment, message
FROM manifest WHERE tenant = :tenant AND id = :id

-- history --
-- Versions of a branch, newest first.
SELECT id, owner, workflow, branch, version, parent, root, created_at, execution, segment, message
FROM manifest
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch AND version < :before_version
ORDER BY version DESC LIMIT :limit

-- history_of_execution --
-- Versions of a branch that one execution made, newest first.
SELECT id, owner, workflow, branch, version, parent, root, created_at, execution, segment, message
FROM manifest
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch AND version < :before_version
  AND execution = :execution
ORDER BY version DESC LIMIT :limit

-- history_filtered --
-- Versions of a branch, newest first, of one segment, of one execution, or of a time: whatever of these is asked for.
SELECT id, owner, workflow, branch, version, parent, root, created_at, execution, segment, message
FROM manifest
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch AND version < :before_version
  AND (CAST(:execution AS text) IS NULL OR execution = :execution)
  AND (CAST(:segment AS bigint) IS NULL OR segment = :segment)
  AND created_at >= :since AND created_at < :until
ORDER BY version DESC LIMIT :limit

-- history_decided --
-- As in history.sql, but each version is looked up by its id: a plan made from old statistics would as soon read all versions of the branch.
SELECT manifest.id, manifest.owner, manifest.workflow, manifest.branch, manifest.version, manifest.parent, manifest.root,
       manifest.created_at, manifest.execution, manifest.segment, manifest.message
[sqlite] FROM decision JOIN manifest
[sqlite]     ON manifest.tenant = decision.tenant AND manifest.id = decision.manifest AND manifest.version = decision.version
[sqlite]     AND manifest.owner = decision.owner AND manifest.workflow = decision.workflow AND manifest.branch = decision.branch
[postgres] FROM decision CROSS JOIN LATERAL (
[postgres]     SELECT * FROM manifest AS found
[postgres]     WHERE found.tenant = decision.tenant AND found.id = decision.manifest
[postgres]     OFFSET 0
[postgres] ) AS manifest
WHERE decision.tenant = :tenant AND decision.owner = :owner AND decision.workflow = :workflow
  AND decision.branch = :branch AND decision.version < :before_version AND decision.decision = :decision
[postgres]   AND manifest.version = decision.version AND manifest.owner = decision.owner AND manifest.workflow = decision.workflow
[postgres]   AND manifest.branch = decision.branch
  AND (CAST(:execution AS text) IS NULL OR manifest.execution = :execution)
  AND (CAST(:segment AS bigint) IS NULL OR manifest.segment = :segment)
  AND manifest.created_at >= :since AND manifest.created_at < :until
ORDER BY decision.version DESC LIMIT :limit

-- journal --
-- Records of a branch, oldest first.
SELECT seq, kind, manifest, body, hash, created_at
FROM journal
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch AND seq > :after_seq
ORDER BY seq LIMIT :limit
