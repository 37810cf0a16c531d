-- schedule --
-- One by its name.
SELECT tenant, name, document, definition, revision, paused, next_at, look_at, last_at, error, created_at, updated_at FROM schedule
WHERE tenant = :tenant AND name = :name

-- schedules --
-- All of a tenant.
SELECT tenant, name, document, definition, revision, paused, next_at, look_at, last_at, error, created_at, updated_at FROM schedule
WHERE tenant = :tenant ORDER BY name

-- drop_schedule --
-- No more ticks; what was begun goes on.
DELETE FROM schedule WHERE tenant = :tenant AND name = :name

-- add_schedule --
-- No row touched means that the name is taken.
INSERT INTO schedule (tenant, name, document, definition, revision, paused, next_at, look_at, created_at, updated_at)
SELECT :tenant, :name, :document, :definition, 1, 0, :next::bigint, :next::bigint, analemma_now(), analemma_now()
WHERE true ON CONFLICT DO NOTHING

-- replace_schedule --
-- Another definition of the same name; one that is paused stays so. No row touched means that it has ticked since it was seen, or is gone.
UPDATE schedule
SET document = :document, definition = :definition, revision = revision + 1, next_at = :next::bigint,
    look_at = CASE WHEN paused = 0 THEN :next::bigint END, error = NULL, updated_at = analemma_now()
-- guard: schedule.replaced.revision
WHERE tenant = :tenant AND name = :name AND revision = :revision AND coalesce(next_at, -1) = coalesce(:seen::bigint, -1)  -- guard: schedule.replaced

-- advance_schedule --
-- From one tick to the next. Compare-and-set: no row touched means that somebody else was first, or that it is paused or another by now.
UPDATE schedule
SET next_at = :next::bigint, look_at = :next::bigint, last_at = coalesce(:tick::bigint, last_at), error = NULL, updated_at = analemma_now()
-- guard: schedule.revision
-- guard: schedule.paused
WHERE tenant = :tenant AND name = :name AND revision = :revision AND next_at = :seen AND paused = 0  -- guard: schedule.seen

-- postpone_schedule --
-- A tick that could not be begun, and why; it is tried again later.
UPDATE schedule SET look_at = :look::bigint, error = :error::text, updated_at = analemma_now()
-- guard: schedule.postponed.revision
WHERE tenant = :tenant AND name = :name AND revision = :revision AND next_at = :seen AND paused = 0  -- guard: schedule.postponed

-- pause_schedule --
-- No ticks until it is resumed.
UPDATE schedule SET paused = 1, look_at = NULL, updated_at = analemma_now() WHERE tenant = :tenant AND name = :name

-- resume_schedule --
-- Ticks from now on; those meanwhile were not missed.
UPDATE schedule SET paused = 0, next_at = :next::bigint, look_at = :next::bigint, error = NULL, updated_at = analemma_now()
WHERE tenant = :tenant AND name = :name AND paused = 1

-- due_schedules --
-- Of all tenants, or one: what has a tick by now.
SELECT tenant, name, document, definition, revision, paused, next_at, look_at, last_at, error, created_at, updated_at FROM schedule
WHERE look_at <= :now AND tenant = coalesce(:tenant::integer, tenant) ORDER BY look_at LIMIT :limit
