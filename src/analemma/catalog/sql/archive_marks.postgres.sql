-- archive_gc_hold --
-- Nobody takes the lease before this transaction ends.
SELECT pass FROM archive_gc WHERE tenant = :tenant AND holder IS NOT NULL FOR SHARE  -- guard: unit.held.lock.postgres

-- add_archive_marks --
-- A mark stays what it was, unless it is from a time that has not come: then a clock was wrong.
INSERT INTO archive_mark (tenant, unit, first_orphan_detected, pass)
SELECT :tenant, wanted.unit, :now, :pass FROM jsonb_array_elements_text(:units::jsonb) AS wanted (unit)
ON CONFLICT (tenant, unit) DO UPDATE SET first_orphan_detected = excluded.first_orphan_detected, pass = excluded.pass
WHERE archive_mark.first_orphan_detected > excluded.first_orphan_detected

-- drop_archive_marks --
-- Of units that are somebody's again, or gone.
DELETE FROM archive_mark
WHERE tenant = :tenant AND unit = ANY (ARRAY(SELECT jsonb_array_elements_text(:units::jsonb)))

-- due_archive_marks --
-- Those of the units whose mark is old enough, and an earlier pass's.
SELECT unit FROM archive_mark
WHERE tenant = :tenant AND unit = ANY (ARRAY(SELECT jsonb_array_elements_text(:units::jsonb)))
  AND first_orphan_detected <= :since AND pass < :pass
ORDER BY unit

-- known_units --
-- Those of these, each as [workspace, op_id], that were ever begun here. OFFSET 0: each is looked up by itself, also
-- before the database has counted the rows and would rather read them all.
SELECT found.workspace, found.op_id
FROM jsonb_array_elements(:units::jsonb) AS wanted (pair)
CROSS JOIN LATERAL (
    SELECT workspace, op_id FROM archive_unit
    WHERE tenant = :tenant AND workspace = wanted.pair ->> 0 AND op_id = wanted.pair ->> 1
    OFFSET 0
) AS found

-- kept_for_nobody --
-- Those of these, each as [workspace, op_id], that are kept, and that no workspace needs. OFFSET 0 as above.
SELECT found.workspace, found.op_id
FROM jsonb_array_elements(:units::jsonb) AS wanted (pair)
CROSS JOIN LATERAL (
    SELECT workspace, op_id FROM archive_unit
    WHERE tenant = :tenant AND workspace = wanted.pair ->> 0 AND op_id = wanted.pair ->> 1 AND state = 'kept'
      AND NOT EXISTS (
          SELECT 1 FROM workspace AS owner
          WHERE owner.tenant = archive_unit.tenant AND owner.id = archive_unit.workspace
            AND owner.deleted_at IS NULL AND archive_unit.op_id IN (owner.op_id, owner.archive_op)
      )
    OFFSET 0
) AS found
