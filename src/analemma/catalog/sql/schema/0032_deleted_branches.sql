-- Branches that were deleted and can still be had back. All that was theirs is under an owner of its own, whom nobody can name, so that no reader
-- finds it by their name; their journals stay where they were and end in a tombstone.

-- One deletion, of one branch or of a whole workflow.
CREATE TABLE deletion (
    tenant     integer NOT NULL,
    -- The owner who has the rows.
    aside      text COLLATE "C" NOT NULL,
    owner      text COLLATE "C" NOT NULL,
    workflow   text COLLATE "C" NOT NULL,
    -- By the database's clock.
    deleted_at bigint NOT NULL,
    PRIMARY KEY (tenant, owner, workflow, aside)
) WITHOUT ROWID;
CREATE INDEX deletion_age ON deletion (tenant, deleted_at);

-- The versions that branches were forked from, whether or not they are still there: whoever walks back from such a branch goes on behind them.
CREATE VIEW forked_version AS
SELECT manifest.tenant, manifest.owner, manifest.workflow, manifest.branch, manifest.version,
       branch.owner AS by_owner, branch.workflow AS by_workflow, branch.branch AS by_branch
FROM manifest JOIN branch ON branch.tenant = manifest.tenant AND branch.parent = manifest.id
UNION ALL
SELECT expired.tenant, expired.owner, expired.workflow, expired.branch, expired.version, branch.owner, branch.workflow, branch.branch
FROM expired JOIN branch ON branch.tenant = expired.tenant AND branch.parent = expired.manifest;

-- `removal` has what earlier releases noted of branches that they removed; nothing is added to it.
