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
SELECT manifest, owner, workflow, branch, version, expired_at
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
WHERE tenant = :tenant AND (owner, workflow) > (:after_owner, :after_workflow)
ORDER BY owner, workflow LIMIT :limit
