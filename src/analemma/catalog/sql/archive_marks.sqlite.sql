-- archive_gc_hold --
-- There is one writer, so what it says stays so until the transaction ends.
SELECT pass FROM archive_gc WHERE tenant = :tenant AND holder IS NOT NULL

-- add_archive_marks --
-- A mark stays what it was, unless it is from a time that has not come: then a clock was wrong.
INSERT INTO archive_mark (tenant, unit, first_orphan_detected, pass)
SELECT :tenant, value, :now, :pass FROM json_each(:units) WHERE true
ON CONFLICT (tenant, unit) DO UPDATE SET first_orphan_detected = excluded.first_orphan_detected, pass = excluded.pass
WHERE archive_mark.first_orphan_detected > excluded.first_orphan_detected

-- drop_archive_marks --
-- Of units that are somebody's again, or gone.
DELETE FROM archive_mark WHERE tenant = :tenant AND unit IN (SELECT value FROM json_each(:units))

-- due_archive_marks --
-- Those of the units whose mark is old enough, and an earlier pass's.
SELECT unit FROM archive_mark
WHERE tenant = :tenant AND unit IN (SELECT value FROM json_each(:units)) AND first_orphan_detected <= :since AND pass < :pass
ORDER BY unit

-- known_units --
-- Those of these, each as [workspace, op_id], that were ever begun here.
SELECT archive_unit.workspace, archive_unit.op_id
FROM json_each(:units) AS wanted
CROSS JOIN archive_unit ON archive_unit.tenant = :tenant AND archive_unit.workspace = json_extract(wanted.value, '$[0]')
                       AND archive_unit.op_id = json_extract(wanted.value, '$[1]')

-- kept_for_nobody --
-- Those of these, each as [workspace, op_id], that are kept, and that no workspace needs.
SELECT archive_unit.workspace, archive_unit.op_id
FROM json_each(:units) AS wanted
CROSS JOIN archive_unit ON archive_unit.tenant = :tenant AND archive_unit.workspace = json_extract(wanted.value, '$[0]')
                       AND archive_unit.op_id = json_extract(wanted.value, '$[1]')
WHERE archive_unit.state = 'kept'
  AND NOT EXISTS (
      SELECT 1 FROM workspace
      WHERE workspace.tenant = archive_unit.tenant AND workspace.id = archive_unit.workspace
        AND workspace.deleted_at IS NULL AND archive_unit.op_id IN (workspace.op_id, workspace.archive_op)
  )
