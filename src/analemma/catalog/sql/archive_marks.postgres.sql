-- archive_gc_hold --
-- Nobody takes the lease before this transaction ends.
SELECT pass FROM archive_gc WHERE tenant = :tenant AND holder IS NOT NULL FOR SHARE

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
-- Those of these, each as [workspace, op_id], that were ever begun here.
SELECT archive_unit.workspace, archive_unit.op_id
FROM jsonb_array_elements(:units::jsonb) AS wanted (pair)
JOIN archive_unit ON archive_unit.tenant = :tenant AND archive_unit.workspace = wanted.pair ->> 0
                 AND archive_unit.op_id = wanted.pair ->> 1
