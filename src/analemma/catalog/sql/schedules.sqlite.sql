-- add_schedule --
-- No row touched means that the name is taken.
INSERT INTO schedule (tenant, name, document, definition, revision, paused, next_at, look_at, created_at, updated_at)
SELECT :tenant, :name, :document, :definition, 1, 0, :next, :next, (SELECT us FROM moment), (SELECT us FROM moment)
WHERE true ON CONFLICT DO NOTHING

-- replace_schedule --
-- Another definition of the same name; one that is paused stays so. No row touched means that it has ticked since it was seen, or is gone.
UPDATE schedule
SET document = :document, definition = :definition, revision = revision + 1, next_at = :next,
    look_at = CASE WHEN paused = 0 THEN :next END, error = NULL, updated_at = (SELECT us FROM moment)
-- guard: schedule.replaced.revision.sqlite
WHERE tenant = :tenant AND name = :name AND revision = :revision AND coalesce(next_at, -1) = coalesce(:seen, -1)  -- guard: schedule.replaced.sqlite

-- advance_schedule --
-- From one tick to the next. Compare-and-set: no row touched means that somebody else was first, or that it is paused or another by now.
UPDATE schedule
SET next_at = :next, look_at = :next, last_at = coalesce(:tick, last_at), error = NULL, updated_at = (SELECT us FROM moment)
-- guard: schedule.revision.sqlite
-- guard: schedule.paused.sqlite
WHERE tenant = :tenant AND name = :name AND revision = :revision AND next_at = :seen AND paused = 0  -- guard: schedule.seen.sqlite

-- postpone_schedule --
-- A tick that could not be begun, and why; it is tried again later.
UPDATE schedule SET look_at = :look, error = :error, updated_at = (SELECT us FROM moment)
-- guard: schedule.postponed.revision.sqlite
WHERE tenant = :tenant AND name = :name AND revision = :revision AND next_at = :seen AND paused = 0  -- guard: schedule.postponed.sqlite

-- pause_schedule --
-- No ticks until it is resumed.
UPDATE schedule SET paused = 1, look_at = NULL, updated_at = (SELECT us FROM moment) WHERE tenant = :tenant AND name = :name

-- resume_schedule --
-- Ticks from now on; those meanwhile were not missed.
UPDATE schedule SET paused = 0, next_at = :next, look_at = :next, error = NULL, updated_at = (SELECT us FROM moment)
WHERE tenant = :tenant AND name = :name AND paused = 1

-- due_schedules --
-- Of all tenants, or one: what has a tick by now.
SELECT tenant, name, document, definition, revision, paused, next_at, look_at, last_at, error, created_at, updated_at FROM schedule
WHERE look_at <= :now AND tenant = coalesce(:tenant, tenant) ORDER BY look_at LIMIT :limit
