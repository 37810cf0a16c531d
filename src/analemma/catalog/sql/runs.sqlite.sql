-- add_run --
-- A run, beside the commit of the version that it begins with. No row touched means that its execution or its key is taken. One that is left to
-- others has all of its time when one of them takes it.
INSERT INTO run (tenant, execution, owner, workflow, branch, name, document, born, head, status, position, options, incarnation, fence, holder,
                 due_at, deadline, time_limit, begun_at, idempotency_key, fingerprint, queue, priority, created_at, updated_at, parent)
SELECT :tenant, :execution, :owner, :workflow, :branch, :name, :document, :manifest, :manifest, :status, :position, :options, :incarnation, 1,
       :holder, (SELECT us FROM moment) + :due_in,
       CASE WHEN :status <> 'PENDING' THEN (SELECT us FROM moment) + :limit END, :limit, CASE WHEN :status <> 'PENDING' THEN (SELECT us FROM moment) END, :key, :fingerprint, :queue, :priority,
       (SELECT us FROM moment), (SELECT us FROM moment), :parent
WHERE true ON CONFLICT DO NOTHING

-- advance_run --
-- Where a run stands after a segment. Compare-and-set on the fence: no row touched means that the run is somebody else's, or was cancelled,
-- and nothing that was to go with it may stay.
UPDATE run
SET position = :position, head = :head, status = :status, waiting = :waiting, error = :error, incarnation = :incarnation,
    fence = fence + :raised, holder = CASE WHEN :kept = 1 THEN holder END,
    due_at = CASE WHEN :kept = 1 AND :due_in IS NULL THEN due_at ELSE (SELECT us FROM moment) + :due_in END,
    updated_at = (SELECT us FROM moment),
    ended_at = CASE WHEN :over = 1 THEN (SELECT us FROM moment) END
-- guard: run.status.sqlite
WHERE number = :run AND fence = :fence AND status IN ('RUNNING', :from_status)  -- guard: run.fence.sqlite

-- put_run_segment --
-- What a segment came to; tried again, in the place of what it came to before.
INSERT INTO run_segment
    (run, incarnation, seq, segment, place, iteration, position, status, input, output, attempts, error, started_at, ended_at)
VALUES (:run, :incarnation, :seq, :segment, :place, :iteration, :before, :segment_status, :input, :output, :attempts, :segment_error,
       (SELECT us FROM moment) - :took, (SELECT us FROM moment))
ON CONFLICT (run, incarnation, seq) DO UPDATE
SET segment = excluded.segment, place = excluded.place, iteration = excluded.iteration, position = excluded.position, status = excluded.status,
    input = excluded.input, output = excluded.output, attempts = run_segment.attempts + excluded.attempts, error = excluded.error,
    ended_at = excluded.ended_at

-- move_run --
-- The same without a segment: a run is cancelled, begins again, or waits for its next try.
UPDATE run
SET position = :position, head = :head, status = :status, waiting = :waiting, error = :error, incarnation = :incarnation,
    fence = fence + :raised, holder = CASE WHEN :kept = 1 THEN holder END,
    due_at = CASE WHEN :kept = 1 AND :due_in IS NULL THEN due_at ELSE (SELECT us FROM moment) + :due_in END,
    updated_at = (SELECT us FROM moment),
    ended_at = CASE WHEN :over = 1 THEN (SELECT us FROM moment) END
WHERE number = :run AND fence = :fence AND status IN ('RUNNING', :from_status)  -- guard: run.moved.sqlite

-- restart_deadline --
-- The run as a whole has so long from now on; `late`: only if its time is over.
UPDATE run SET deadline = (SELECT us FROM moment) + :limit
WHERE number = :run AND deadline IS NOT NULL AND (:late = 0 OR deadline <= (SELECT us FROM moment))

-- claim_run --
-- Take a run: one that nobody holds, whose holder's lease is over, or whose holder is known to be gone. `failed`: also one that failed.
UPDATE run
SET fence = fence + 1, holder = :holder, due_at = (SELECT us FROM moment) + :lease, status = 'RUNNING', error = NULL, ended_at = NULL,
    begun_at = coalesce(begun_at, (SELECT us FROM moment)), deadline = coalesce(deadline, (SELECT us FROM moment) + time_limit), updated_at = (SELECT us FROM moment)
WHERE number = :run AND (status IN ('PENDING', 'RUNNING') OR (status = 'FAILED' AND :failed = 1))
  AND (holder IS NULL OR due_at <= (SELECT us FROM moment) OR holder = :gone)  -- guard: run.claimed.sqlite
RETURNING number, execution, owner, workflow, branch, name, document, born, head, status, position, waiting, error, options, incarnation,
          fence, holder, due_at, deadline, idempotency_key, fingerprint, queue, priority, created_at, updated_at, ended_at, parent, begun_at

-- claim_due_runs --
-- Take runs of no queue that somebody has to look at: that nobody has begun, whose holder's lease is over, whose time to go on or to decide has come.
UPDATE run
SET fence = fence + 1, holder = :holder, due_at = (SELECT us FROM moment) + :lease,
    status = CASE WHEN status = 'PENDING' THEN 'RUNNING' ELSE status END, begun_at = coalesce(begun_at, (SELECT us FROM moment)),
    deadline = coalesce(deadline, (SELECT us FROM moment) + time_limit), updated_at = (SELECT us FROM moment)
WHERE number IN (
    SELECT number FROM run
    WHERE due_at <= (SELECT us FROM moment) AND tenant = coalesce(:tenant, tenant)
      AND queue = '' AND status IN ('PENDING', 'RUNNING', 'WAITING_HUMAN')
    ORDER BY due_at LIMIT :limit
)
RETURNING tenant, number, execution, owner, workflow, branch, name, document, born, head, status, position, waiting, error, options, incarnation,
          fence, holder, due_at, deadline, idempotency_key, fingerprint, queue, priority, created_at, updated_at, ended_at, parent, begun_at

-- renew_run --
-- No row touched means that it is somebody else's, or was cancelled.
UPDATE run SET due_at = (SELECT us FROM moment) + :lease
-- guard: run.renewed.holder.sqlite
WHERE number = :run AND fence = :fence AND holder IS NOT NULL AND status = 'RUNNING'  -- guard: run.renewed.sqlite

-- release_run --
-- Give it back as it is, for whoever looks next.
UPDATE run SET holder = NULL, due_at = (SELECT us FROM moment) + :due_in
WHERE number = :run AND fence = :fence AND holder IS NOT NULL  -- guard: run.released.sqlite

-- begin_effect --
-- Somebody is about to do it, by whoever has the fence. No row touched means that the run is somebody else's, or was cancelled, or that it was
-- done: what was done stays done. Answers which attempt it is.
INSERT INTO effect (run, incarnation, key, state, attempts, begun_at)
SELECT :run, :incarnation, :key, 'intent', 1, (SELECT us FROM moment)
WHERE true AND EXISTS (SELECT 1 FROM run WHERE number = :run AND fence = :fence AND status = 'RUNNING')  -- guard: effect.begun.sqlite
ON CONFLICT (run, incarnation, key) DO UPDATE
SET state = 'intent', attempts = effect.attempts + 1 WHERE effect.state <> 'done'  -- guard: effect.done.sqlite
RETURNING attempts

-- end_effect --
-- What it came to, by whoever has the fence. That it did not happen only the last who began can say: another may be at it.
UPDATE effect SET state = :state, result = :result, body = :body,
    ended_at = (SELECT us FROM moment)
WHERE run = :run AND incarnation = :incarnation AND key = :key AND state <> 'done'
  AND (:state = 'done' OR attempts = :attempt)
  AND EXISTS (SELECT 1 FROM run WHERE number = :run AND fence = :fence AND status = 'RUNNING')  -- guard: effect.ended.sqlite

-- put_effect --
-- One that needs no beginning, in the place of whatever is known of it.
INSERT INTO effect (run, incarnation, key, state, result, body, attempts, begun_at, ended_at)
SELECT :run, :incarnation, :key, :state, :result, :body, 1, (SELECT us FROM moment), (SELECT us FROM moment)
WHERE true AND EXISTS (SELECT 1 FROM run WHERE number = :run AND fence = :fence AND status = 'RUNNING')  -- guard: effect.noted.sqlite
ON CONFLICT (run, incarnation, key) DO UPDATE
SET state = excluded.state, result = excluded.result, body = excluded.body, ended_at = excluded.ended_at WHERE effect.state <> 'done'

-- hold_run --
-- No row means that the run is somebody else's, or was cancelled; a row, that it stays ours until the transaction ends.
SELECT number FROM run WHERE number = :run AND fence = :fence AND status = 'RUNNING'  -- guard: run.held.sqlite

-- hold_parent --
-- A run that is about to begin another stays its holder's until that is there. No row touched means that it is somebody else's, or was cancelled.
UPDATE run SET updated_at = updated_at WHERE number = :run AND fence = :fence AND status = 'RUNNING'  -- guard: run.parent.sqlite

-- wake_parent --
-- The run that waits for one that has ended, beside its end. Before it in every transaction: whoever waits is locked before whom it waits for.
UPDATE run SET due_at = (SELECT us FROM moment)
WHERE number = :run AND holder IS NULL AND status = 'RUNNING' AND waiting LIKE '{"kind":"subflow"%'

-- look_at_child --
-- A run that begins to wait for another, which may have ended since it was looked at.
UPDATE run SET due_at = (SELECT us FROM moment)
WHERE number = :run AND EXISTS (SELECT 1 FROM run AS child WHERE child.number = :child AND child.ended_at IS NOT NULL)  -- guard: run.child.sqlite

-- cancel_children --
-- The runs that one has begun and waits for, when it is cancelled; up to a number, which those that are begun from now on are above.
UPDATE run
SET status = 'CANCELLED', fence = fence + 1, holder = NULL, due_at = NULL, waiting = NULL, error = NULL,
    updated_at = (SELECT us FROM moment), ended_at = (SELECT us FROM moment)
WHERE parent = :run AND number <= :last AND ended_at IS NULL
RETURNING number, owner, workflow, branch

-- run_of_key --
-- The run that was born under an idempotency key. The key counts for as long as the run goes on, keys are kept after its end, its first
-- version is there, or it is that by which a run knows one that it began.
SELECT number, execution, owner, workflow, branch, name, document, born, head, status, position, waiting, error, options, incarnation, fence,
       holder, due_at, deadline, idempotency_key, fingerprint, queue, priority, created_at, updated_at, ended_at, parent, begun_at
FROM run WHERE tenant = :tenant AND idempotency_key = :key
  AND (ended_at IS NULL OR ended_at > (SELECT us FROM moment) - :keep OR parent IS NOT NULL
       OR EXISTS (SELECT 1 FROM manifest WHERE manifest.tenant = run.tenant AND manifest.id = run.born))

-- drop_old_run_key --
-- A key that counts no more is in the way of no new run.
UPDATE run SET idempotency_key = NULL
WHERE tenant = :tenant AND idempotency_key = :key AND ended_at <= (SELECT us FROM moment) - :keep AND parent IS NULL
  AND NOT EXISTS (SELECT 1 FROM manifest WHERE manifest.tenant = run.tenant AND manifest.id = run.born)
