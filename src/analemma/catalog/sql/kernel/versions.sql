-- head --
-- Where one branch stands.
SELECT manifest, version, journal_seq, journal_tip
FROM head WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch

-- version_columns [text] --
-- What a `Version` is made of.
SELECT manifest.id, manifest.owner, manifest.workflow, manifest.branch, manifest.version, manifest.parent, manifest.root,
       manifest.created_at, manifest.execution, manifest.segment, manifest.message

-- manifest --
-- One version, by its id.
include version_columns
FROM manifest WHERE tenant = :tenant AND id = :id

-- versions_between --
-- Versions, of one owner or of all, whose ids begin alike: those from one id to another.
include version_columns
FROM manifest
WHERE tenant = :tenant AND id BETWEEN :low AND :high AND (:owner::text IS NULL OR owner = :owner::text)
  AND substr(owner, 1, 9) <> '~deleted/'  -- guard: deleted.prefix
ORDER BY id LIMIT :limit

-- history --
-- Versions of a branch, newest first.
include version_columns
FROM manifest
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch AND version < :before_version
ORDER BY version DESC LIMIT :limit

-- versions_after --
-- Versions of a branch, oldest first.
include version_columns
FROM manifest
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch AND version > :after_version
ORDER BY version LIMIT :limit

-- history_of_execution --
-- Versions of a branch that one execution made, newest first.
include version_columns
FROM manifest
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch AND version < :before_version
  AND execution = :execution
ORDER BY version DESC LIMIT :limit

-- history_filtered --
-- Versions of a branch, newest first, of one segment, of one execution, or of a time: whatever of these is asked for.
include version_columns
FROM manifest
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch AND version < :before_version
  AND (CAST(:execution AS text) IS NULL OR execution = :execution)
  AND (CAST(:segment AS bigint) IS NULL OR segment = :segment)
  AND created_at >= :since AND created_at < :until
ORDER BY version DESC LIMIT :limit

-- history_decided --
-- As in `history_filtered`, but each version is looked up by its id: a plan made from old statistics would as soon read all versions of the branch.
include version_columns
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
include version_columns
FROM manifest
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch AND version = :next_version
  AND substr(owner, 1, 9) <> '~deleted/'
UNION ALL
include version_columns
FROM branch JOIN manifest ON manifest.tenant = branch.tenant AND manifest.id = branch.first_manifest
WHERE branch.tenant = :tenant AND branch.parent = :id AND substr(branch.owner, 1, 9) <> '~deleted/'

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

-- refs --
-- Tags and pins of a workflow, oldest first: all of them, those of one kind, or the one of a name.
SELECT ref.kind, ref.name, ref.owner, ref.workflow, ref.branch, ref.manifest, manifest.version, ref.text, ref.created_at
FROM ref JOIN manifest ON manifest.tenant = ref.tenant AND manifest.id = ref.manifest
WHERE ref.tenant = :tenant AND ref.owner = :owner AND ref.workflow = :workflow
  AND (:kind::text IS NULL OR ref.kind = :kind::text) AND (:name::text IS NULL OR ref.name = :name::text)
ORDER BY ref.created_at, ref.name

-- expired --
-- Whether this was a version once.
SELECT manifest, owner, workflow, branch, version, expired_at FROM expired WHERE tenant = :tenant AND manifest = :manifest

-- expired_version --
-- Whether the branch had this version once.
SELECT manifest, owner, workflow, branch, version, expired_at
FROM expired
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch AND version = :version

-- expired_versions --
-- What is gone from a branch, oldest first.
SELECT version, manifest, expired_at
FROM expired
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch AND version > :after_version
ORDER BY version LIMIT :limit

-- set_retention --
-- One policy for a workflow, or (with an empty workflow) for all of an owner's.
INSERT INTO retention
    (tenant, owner, workflow, keep_last, keep_newer_than_s, keep_hourly, keep_daily, keep_weekly)
VALUES (:tenant, :owner, :workflow, :keep_last, :keep_newer_than_s, :keep_hourly, :keep_daily, :keep_weekly)
ON CONFLICT (tenant, owner, workflow) DO UPDATE
SET keep_last = excluded.keep_last, keep_newer_than_s = excluded.keep_newer_than_s,
    keep_hourly = excluded.keep_hourly, keep_daily = excluded.keep_daily, keep_weekly = excluded.keep_weekly

-- retention --
-- The policy that applies: the workflow's own, or else its owner's.
SELECT keep_last, keep_newer_than_s, keep_hourly, keep_daily, keep_weekly
FROM retention
WHERE tenant = :tenant AND owner = :owner AND workflow IN (:workflow, '')
ORDER BY workflow DESC LIMIT 1

-- retention_policies --
-- A page of a tenant's policies, in an order that does not change.
SELECT owner, workflow, keep_last, keep_newer_than_s, keep_hourly, keep_daily, keep_weekly
FROM retention
WHERE tenant = :tenant AND (owner, workflow) > (:after_owner, :after_workflow) AND substr(owner, 1, 9) <> '~deleted/'
ORDER BY owner, workflow LIMIT :limit
