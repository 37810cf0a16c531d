-- What was last decided on each version, so that versions can be found by it. The journal holds the decisions themselves; a row here repeats the
-- newest one and goes with its version.

CREATE TABLE decision (
    tenant   integer NOT NULL,
    manifest bytea NOT NULL,
    owner    text NOT NULL,
    workflow text NOT NULL,
    branch   text NOT NULL,
    version  bigint NOT NULL,
    decision text NOT NULL CHECK (decision IN ('approved', 'rejected', 'escalated', 'pending')),
    PRIMARY KEY (tenant, manifest),
    FOREIGN KEY (tenant, manifest) REFERENCES manifest (tenant, id) ON DELETE CASCADE
);
CREATE INDEX decision_version ON decision (owner, workflow, branch, tenant, decision, version);

-- A record's bytes are canonical: the decision is the last of its facts, and the owner follows them. Approval is
-- looked for last: a reason that quotes a record must not pass for one.
INSERT INTO decision (tenant, manifest, owner, workflow, branch, version, decision)
SELECT manifest.tenant, manifest.id, manifest.owner, manifest.workflow, manifest.branch, manifest.version,
       CASE
           WHEN position('hdecisionhrejectedeowner'::bytea IN journal.body) > 0 THEN 'rejected'
           WHEN position('hdecisioniescalatedeowner'::bytea IN journal.body) > 0 THEN 'escalated'
           WHEN position('hdecisiongpendingeowner'::bytea IN journal.body) > 0 THEN 'pending'
           WHEN position('hdecisionhapprovedeowner'::bytea IN journal.body) > 0 THEN 'approved'
           ELSE 'pending'
       END
FROM journal JOIN manifest
    ON manifest.tenant = journal.tenant AND manifest.id = journal.manifest AND manifest.owner = journal.owner
    AND manifest.workflow = journal.workflow AND manifest.branch = journal.branch
WHERE journal.kind = 'decided' AND journal.seq = (
    SELECT max(newest.seq) FROM journal AS newest
    WHERE newest.tenant = journal.tenant AND newest.owner = journal.owner AND newest.workflow = journal.workflow
      AND newest.branch = journal.branch AND newest.manifest = journal.manifest AND newest.kind = 'decided'
);
