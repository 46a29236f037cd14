-- name: claimable_states
-- Spelt as the indices spell it, or they would not be used.
(t.state = 'pending' OR t.state = 'retrying' OR t.state = 'abandoned' OR t.state = 'corrupt')

-- name: waits
-- The one rule for when a task may not start yet; every path that ends a task asks it again.
EXISTS (
    SELECT 1 FROM edges AS e WHERE e.job_id = t.job_id AND e.step = t.step AND CASE e.kind
    WHEN 'one' THEN NOT EXISTS (
        SELECT 1 FROM tasks AS u WHERE u.job_id = t.job_id AND u.step = e.upstream
        AND u.idx = 0 AND u.state = 'done')
    WHEN 'same' THEN NOT EXISTS (
        SELECT 1 FROM tasks AS u WHERE u.job_id = t.job_id AND u.step = e.upstream
        AND u.idx = t.idx AND u.state = 'done')
    ELSE EXISTS (
        SELECT 1 FROM unfinished AS u WHERE u.job_id = t.job_id AND u.step = e.upstream)
      OR EXISTS (
        SELECT 1 FROM tasks AS u WHERE u.job_id = t.job_id AND u.step = e.upstream
        AND (u.state = 'failed' OR u.state = 'cancelled') AND NOT u.gap)
      OR NOT EXISTS (
        SELECT 1 FROM tasks AS p WHERE p.job_id = t.job_id AND p.step = e.plan
        AND p.idx = 0 AND p.state = 'done')
    END)

-- name: watch_tasks
-- No statement can forget its events, but the two that run for every task, `claim` and
-- `complete`, write them by the batch.
CREATE TEMP TRIGGER task_changes AFTER UPDATE OF state ON main.tasks
WHEN old.state <> new.state AND (new.state <> 'leased' AND new.state <> 'done' OR :illegal) BEGIN
    SELECT raise(ABORT, 'illegal task transition') WHERE :illegal;
    INSERT INTO events (at_ms, job_id, tasks, step, was, now, fence, worker, code, message)
    VALUES (new.updated_ms, new.job_id, '[' || new.id || ']', new.step, old.state, new.state,
            new.fence, coalesce(new.worker, old.worker),
            CASE WHEN new.state <> 'running' AND new.state <> 'pending' THEN new.code END,
            new.message);
END;

-- name: watch_jobs
CREATE TEMP TRIGGER job_changes AFTER UPDATE OF state ON main.jobs WHEN old.state <> new.state BEGIN
    SELECT raise(ABORT, 'illegal job transition') WHERE :illegal;
    INSERT INTO events (at_ms, job_id, was, now, message)
    VALUES (new.updated_ms, new.id, old.state, new.state, new.reason);
    DELETE FROM ready WHERE job_id = new.id AND new.state NOT IN ('pending', 'running', 'draining');
    INSERT INTO ready (job_id, step, class, priority, turn, parked, begin_ms)
    SELECT j.id, s.no, s.class, j.priority, j.turn, 2 * (j.begin_ms > new.updated_ms), j.begin_ms
    FROM jobs AS j JOIN steps AS s ON s.job_id = j.id
    WHERE j.id = new.id AND old.state NOT IN ('pending', 'running', 'draining') AND new.state IN ('pending', 'running', 'draining')
      AND EXISTS (SELECT 1 FROM tasks AS t WHERE t.job_id = j.id AND t.step = s.no
        AND (t.state = 'pending' OR t.state = 'retrying' OR t.state = 'abandoned' OR t.state = 'corrupt'))
    ON CONFLICT DO UPDATE SET parked = excluded.parked WHERE parked <> excluded.parked;
END;

-- name: job_id
SELECT id FROM jobs WHERE key = :key;

-- name: job_specs
SELECT id, revision, spec FROM jobs WHERE id IN (SELECT value FROM json_each(:jobs));

-- name: lock_jobs
-- Nobody else can change anything: those that are there.
SELECT id, revision FROM jobs WHERE id IN (SELECT value FROM json_each(:jobs)) ORDER BY id;

-- name: insert_job
INSERT INTO jobs (key, pipeline, code, source, spec, state, priority, begin_ms, created_ms, updated_ms)
VALUES (:key, :pipeline, :code, :source, :spec, 'pending', :priority, :begin_ms, :now_ms, :now_ms)
ON CONFLICT (key) DO NOTHING
RETURNING id;

-- name: classes
-- Those that anything is ready of: one is looked up after the other.
WITH RECURSIVE found (id) AS (
    SELECT min(class) FROM ready WHERE parked = 0
    UNION ALL
    SELECT (SELECT min(class) FROM ready WHERE parked = 0 AND class > found.id) FROM found
    WHERE found.id IS NOT NULL
)
SELECT c.id, c.code, c.pipeline, c.needs, c.prefers FROM found CROSS JOIN classes AS c USING (id);

-- name: classes_of
SELECT id, step, needs, prefers FROM classes WHERE code = :code;

-- name: add_classes
INSERT INTO classes (pipeline, code, step, needs, prefers)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4
FROM jsonb_each(:classes) WHERE true
ON CONFLICT DO NOTHING;

-- name: insert_steps
INSERT INTO steps (job_id, no, class, name, attempts, needs, prefers, concurrency, gap)
SELECT :job, value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5,
    value ->> 6, value ->> 7
FROM jsonb_each(:steps);
INSERT INTO edges (job_id, step, upstream, kind, plan)
SELECT :job, value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM jsonb_each(:edges) WHERE true
ON CONFLICT DO NOTHING;

-- name: update_spec
UPDATE jobs SET spec = :spec, revision = revision + 1 WHERE id = :job;

-- name: update_steps
UPDATE steps SET class = n.value ->> 1, attempts = n.value ->> 3, needs = n.value ->> 4,
    prefers = n.value ->> 5, concurrency = n.value ->> 6, gap = n.value ->> 7
FROM jsonb_each(:steps) AS n WHERE job_id = :job AND no = n.value ->> 0;

-- name: update_ready
UPDATE ready SET class = (SELECT s.class FROM steps AS s WHERE s.job_id = :job AND s.no = ready.step)
WHERE job_id = :job;

-- name: insert_tasks
-- A task that is there under the same key stays; under another key it starts afresh.
WITH new (step, idx, key, chunk, state) AS (VALUES (?, ?, ?, ?, ?) ...)
INSERT INTO tasks (job_id, step, idx, key, chunk, state, updated_ms)
SELECT :job, step, idx, key, chunk, state, :now_ms
FROM new WHERE true -- without it, ON would belong to a join
ON CONFLICT (job_id, step, idx) DO UPDATE
SET key = excluded.key, chunk = excluded.chunk, state = 'blocked', fence = fence + 1,
    attempts = 0, begun = 0, lost = 0, lost_on = NULL, refusals = 0, ready_s = 0, lease_s = NULL,
    worker = NULL, token = NULL, progress = 0, adopted = 0, gap = 0, receipt = NULL, files = NULL,
    result = NULL, error = NULL, code = NULL, message = NULL, started_ms = NULL, ended_ms = NULL, updated_ms = excluded.updated_ms
WHERE key <> excluded.key;

-- name: can_expand
SELECT job_id FROM tasks
WHERE id = :task AND fence = :fence AND key = :key AND state NOT IN ('blocked', 'done', 'failed', 'cancelled');

-- name: tasks_in_span
SELECT count(*), coalesce(sum(fence), 0) FROM tasks
WHERE job_id = :job AND step = :step AND idx BETWEEN :first AND :last;

-- name: delete_surplus
DELETE FROM tasks WHERE job_id = :job AND step = :step AND idx >= :count RETURNING id;

-- name: add_count
INSERT INTO counts (job_id, step, state, n) VALUES (:job, :step, :state, :n)
ON CONFLICT DO UPDATE SET n = n + excluded.n;

-- name: last_event
SELECT coalesce(max(seq), 0) FROM events;

-- name: insert_events
-- Never a number that was given out before, as in a table that numbers its rows by itself.
INSERT INTO events (seq, n, at_ms, job_id, tasks, step, was, now, fence, worker, message)
SELECT seq + :n, :n, :now_ms, :job, :tasks, :step, :was, :now, :fence, :worker, :message
FROM sqlite_sequence WHERE name = 'events';

-- name: count_changes
WITH moves (job_id, step, was, now, n) AS MATERIALIZED (
    SELECT job_id, step, was, now, sum(n) FROM events
    WHERE seq > :after AND tasks IS NOT NULL GROUP BY job_id, step, was, now
)
INSERT INTO counts (job_id, step, state, n)
SELECT job_id, step, was, -n FROM moves
UNION ALL
SELECT job_id, step, now, n FROM moves WHERE true
ON CONFLICT DO UPDATE SET n = n + excluded.n;

-- name: open_steps
-- Steps of a job that have a task to claim. Those that a claim parked are looked at again.
INSERT INTO ready (job_id, step, class, priority, turn, parked, begin_ms)
SELECT j.id, s.no, s.class, j.priority, j.turn, 2 * (j.begin_ms > :now_ms), j.begin_ms
FROM jobs AS j JOIN steps AS s ON s.job_id = j.id
WHERE j.id = :job AND j.state IN ('pending', 'running', 'draining') AND EXISTS (
    SELECT 1 FROM tasks AS t WHERE t.job_id = j.id AND t.step = s.no AND {claimable_states})
ON CONFLICT DO UPDATE SET parked = excluded.parked WHERE parked <> excluded.parked;

-- name: open_changed
-- Steps of which tasks became claimable.
INSERT INTO ready (job_id, step, class, priority, turn, parked, begin_ms)
SELECT j.id, s.no, s.class, j.priority, j.turn, 2 * (j.begin_ms > :now_ms), j.begin_ms
FROM (
    SELECT DISTINCT job_id, step FROM events WHERE seq > :after AND tasks IS NOT NULL
    AND now IN ('pending', 'retrying', 'abandoned', 'corrupt')
) AS c
CROSS JOIN jobs AS j ON j.id = c.job_id AND j.state IN ('pending', 'running', 'draining')
CROSS JOIN steps AS s ON s.job_id = c.job_id AND s.no = c.step
WHERE true
ON CONFLICT DO UPDATE SET parked = excluded.parked WHERE parked <> excluded.parked;

-- name: any_due
SELECT 1 FROM ready WHERE parked = 1 AND due_s <= :now_s
UNION ALL SELECT 1 FROM ready WHERE parked = 2 AND begin_ms <= :now_ms LIMIT 1;

-- name: unpark
UPDATE ready SET parked = 0 WHERE parked = 1 AND due_s <= :now_s;
UPDATE ready SET parked = 0 WHERE parked = 2 AND begin_ms <= :now_ms;

-- name: ready_of_class
SELECT -r.priority, r.turn, r.job_id, r.step, r.class, j.revision, j.state
FROM ready AS r INDEXED BY ready_in_turn CROSS JOIN jobs AS j ON j.id = r.job_id
WHERE r.parked = 0 AND r.class = :kind
  AND (-r.priority, r.turn, r.job_id) > (:priority, :turn, :job) AND r.priority <= -:priority
ORDER BY r.priority DESC, r.turn, r.job_id LIMIT :limit;

-- name: ready_of_jobs
SELECT -r.priority, r.turn, r.job_id, r.step, r.class, j.revision, j.state FROM jobs AS j
JOIN ready AS r ON r.job_id = j.id
WHERE r.parked = 0 AND j.key IN (SELECT value FROM json_each(:keys))
ORDER BY r.priority DESC, r.turn, r.job_id, r.step;

-- name: next_due
-- Whether there is anything, whether any of it is due, and when the first is.
SELECT count(*), coalesce(min(t.ready_s) <= :now_s, 0), min(t.ready_s) FROM (
    SELECT t.ready_s FROM tasks AS t WHERE t.job_id = :job AND t.step = :step AND {claimable_states}
) AS t;

-- name: park
UPDATE ready SET parked = 1, due_s = :due_s WHERE job_id = :job AND step = :step;

-- name: close_step
DELETE FROM ready WHERE job_id = :job AND step = :step;

-- name: lock_bounds
-- Nobody else claims.
SELECT 1 WHERE false;

-- name: lock_limits
SELECT name, running, per_minute, paused, tokens, filled_ms FROM limits
WHERE name IN (SELECT value FROM json_each(:names)) ORDER BY name;

-- name: paused
SELECT name FROM limits WHERE paused;

-- name: any_limits
SELECT EXISTS (SELECT 1 FROM limits);

-- name: limits
SELECT name, running, per_minute, paused FROM limits ORDER BY name;

-- name: set_limit
INSERT INTO limits (name, running, per_minute, paused, tokens, filled_ms)
VALUES (:name, :running, :per_minute, :paused, :tokens, :now_ms)
ON CONFLICT (name) DO UPDATE
SET running = excluded.running, per_minute = excluded.per_minute, paused = excluded.paused,
    tokens = min(tokens, excluded.tokens);

-- name: drop_limit
DELETE FROM limits WHERE name = :name;

-- name: use_rate
UPDATE limits SET tokens = :tokens, filled_ms = :now_ms WHERE name = :name;

-- name: held_under_step
-- Over every job of the same pipeline, because a limit protects something they share.
SELECT count(*) FROM tasks AS t INDEXED BY tasks_held
CROSS JOIN steps AS s ON s.job_id = t.job_id AND s.no = t.step
CROSS JOIN classes AS c ON c.id = s.class
WHERE (t.state = 'leased' OR t.state = 'running') AND c.pipeline = :pipeline AND c.step = :what;

-- name: held_under_job
SELECT count(*) FROM jobs AS j JOIN tasks AS t ON t.job_id = j.id
WHERE j.key = :what AND (t.state = 'leased' OR t.state = 'running');

-- name: held_under_pipeline
SELECT count(*) FROM tasks AS t INDEXED BY tasks_held
CROSS JOIN jobs AS j ON j.id = t.job_id
WHERE (t.state = 'leased' OR t.state = 'running') AND j.pipeline = :what;

-- name: held_under_label
SELECT count(*) FROM tasks AS t INDEXED BY tasks_held
CROSS JOIN steps AS s ON s.job_id = t.job_id AND s.no = t.step
WHERE :what IN (s.needs, s.prefers) AND (t.state = 'leased' OR t.state = 'running');

-- name: claimable
-- The fence as it will be, and which attempt it is.
SELECT id, step, fence + 1, job_id, state, NULL, message, idx, key, attempts + 1, chunk, lost
FROM tasks AS t
WHERE job_id = :job AND step = :step AND ready_s <= :now_s AND updated_ms <= :since_ms
  AND {claimable_states}
  AND (refusals = 0 OR NOT EXISTS (
    SELECT 1 FROM refusals AS r
    WHERE r.task_id = t.id AND r.host = :host AND r.until_s > :now_s))
ORDER BY id LIMIT :room;

-- name: claim
UPDATE tasks
SET state = 'leased', fence = fence + 1, begun = :begin, worker = :worker,
    lease_s = :lease_s, progress = 0, started_ms = :now_ms, ended_ms = NULL,
    updated_ms = :now_ms
WHERE id BETWEEN :first AND :last;

-- name: take_turn
UPDATE jobs SET state = 'running', turn = :turn,
    updated_ms = CASE state WHEN 'running' THEN updated_ms ELSE :now_ms END
WHERE id = :job;
UPDATE ready SET turn = :turn WHERE job_id = :job;

-- name: renew
UPDATE tasks
SET state = CASE WHEN state = 'leased' AND NOT beat.value ->> 3 THEN state ELSE 'running' END,
    begun = begun OR beat.value ->> 3,
    progress = max(progress, beat.value ->> 2), updated_ms = :now_ms,
    -- A beat that crosses a deferral on its way must not shorten it.
    lease_s = CASE WHEN token IS NULL THEN :lease_s ELSE lease_s END,
    worker = CASE WHEN token IS NULL THEN :worker END
FROM jsonb_each(:beats) AS beat
WHERE tasks.id = beat.value ->> 0 AND fence = beat.value ->> 1
  AND (state = 'leased' OR state = 'running' OR state = 'abandoned')
RETURNING tasks.id;

-- name: tell_progress
-- A clock that was set back keeps nobody silent.
UPDATE tasks SET told = round(progress * 100), told_ms = :now_ms
WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'running'
  AND round(progress * 100) NOT IN (0, told)
  AND told_ms NOT BETWEEN :now_ms - :every_ms + 1 AND :now_ms;

-- name: fates
SELECT t.id, t.state, t.fence, j.state, t.key FROM tasks AS t JOIN jobs AS j ON j.id = t.job_id
WHERE t.id IN (SELECT value FROM json_each(:ids));

-- name: can_end
SELECT id, step, fence, job_id, state, worker, NULL, idx, key FROM tasks
WHERE id BETWEEN :first AND :last
  AND state NOT IN ('blocked', 'done', 'failed', 'cancelled');

-- name: complete
WITH ended (id, result, receipt, files, adopted) AS (VALUES (?, ?, ?, ?, ?) ...)
UPDATE tasks
SET state = 'done', result = ended.result, receipt = ended.receipt, files = ended.files,
    adopted = ended.adopted, progress = 1, worker = NULL, lease_s = NULL, token = NULL,
    refusals = 0, error = NULL, code = NULL, message = NULL, ended_ms = :now_ms, updated_ms = :now_ms
FROM ended WHERE tasks.id = ended.id;

-- name: complete_alike
-- Tasks without receipts that ended with the same result.
UPDATE tasks
SET state = 'done', result = :result, receipt = NULL, files = NULL, adopted = 0, progress = 1,
    worker = NULL, lease_s = NULL, token = NULL, refusals = 0, error = NULL, code = NULL,
    message = NULL, ended_ms = :now_ms, updated_ms = :now_ms
WHERE id BETWEEN :first AND :last;

-- name: fail
UPDATE tasks
SET state = CASE WHEN f.permanent OR tasks.attempts + 1 >= s.attempts
        THEN 'failed' ELSE 'retrying' END,
    gap = (f.permanent OR tasks.attempts + 1 >= s.attempts) AND s.gap,
    refusals = CASE WHEN f.permanent OR tasks.attempts + 1 >= s.attempts THEN 0 ELSE refusals END,
    attempts = tasks.attempts + 1, ready_s = f.ready_s, error = f.error, code = f.code,
    message = f.message, worker = NULL, lease_s = NULL, token = NULL, ended_ms = :now_ms,
    updated_ms = :now_ms
FROM (
    SELECT value ->> 0 AS id, value ->> 1 AS fence, value ->> 2 AS key, value ->> 3 AS permanent,
        value ->> 4 AS ready_s, value ->> 5 AS error, value ->> 6 AS code, value ->> 7 AS message
    FROM jsonb_each(:failures)
) AS f, steps AS s
WHERE tasks.id = f.id AND tasks.fence = f.fence AND tasks.key = coalesce(f.key, tasks.key)
  AND s.job_id = tasks.job_id AND s.no = tasks.step
  AND (state = 'leased' OR state = 'running' OR state = 'abandoned')
RETURNING tasks.id, fence, job_id, step, idx, state;

-- name: release
UPDATE tasks
SET state = 'abandoned', code = :reason, message = :message, ready_s = 0,
    worker = NULL, lease_s = NULL, token = NULL, updated_ms = :now_ms
FROM jsonb_each(:leases) AS lease
WHERE tasks.id = lease.value ->> 0 AND fence = lease.value ->> 1
  AND state IN ('leased', 'running')
RETURNING tasks.id;

-- name: refuse
INSERT INTO refusals (task_id, host, code, message, until_s)
SELECT value, :host, :reason, :message, :until_s FROM json_each(:ids) WHERE true
ON CONFLICT DO UPDATE
SET code = excluded.code, message = excluded.message, until_s = excluded.until_s;

-- name: refusals
SELECT host, code, min(message), count(*),
    :now_ms + CAST((max(until_s) - :now_s) * 1000 AS INTEGER)
FROM refusals WHERE until_s > :now_s GROUP BY host, code ORDER BY host, code;

-- name: count_refusals
UPDATE tasks SET refusals = (SELECT count(*) FROM refusals AS r WHERE r.task_id = tasks.id)
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: defer
UPDATE tasks
SET state = 'running', worker = NULL, token = :token, lease_s = :lease_s, updated_ms = :now_ms
WHERE id = :task AND fence = :fence AND state IN ('leased', 'running')
RETURNING id;

-- name: remember_deferral
INSERT INTO deferrals (token, task_id, fence) VALUES (:token, :task, :fence)
ON CONFLICT DO UPDATE SET fence = excluded.fence;

-- name: jobs_to_rescue
SELECT DISTINCT job_id FROM tasks INDEXED BY tasks_held
WHERE (state = 'leased' OR state = 'running')
  AND (lease_s <= :now_s OR worker IN (SELECT value FROM json_each(:dead)));

-- name: rescue
-- What a deferral costs, and a worker that vanished while it ran the task: see `fail`.
WITH gone (id, gap, is_last, deferred, lost_on) AS MATERIALIZED (
    SELECT t.id, s.gap,
        CASE WHEN t.token IS NULL THEN t.lost + t.begun >= :lost_max
        ELSE t.attempts + 1 >= s.attempts END,
        t.token IS NOT NULL,
        CASE WHEN t.token IS NULL AND t.begun THEN concat_ws(', ', t.lost_on, t.worker)
        ELSE t.lost_on END
    FROM tasks AS t INDEXED BY tasks_held
    CROSS JOIN steps AS s ON s.job_id = t.job_id AND s.no = t.step
    WHERE t.job_id IN (SELECT value FROM json_each(:jobs))
      AND (t.state = 'leased' OR t.state = 'running')
      AND (t.lease_s <= :now_s OR t.worker IN (SELECT value FROM json_each(:dead)))
)
UPDATE tasks
SET state = CASE WHEN gone.is_last THEN 'failed' ELSE 'abandoned' END,
    gap = gone.is_last AND gone.gap,
    refusals = CASE WHEN gone.is_last THEN 0 ELSE refusals END,
    attempts = attempts + gone.deferred, lost = lost + (begun AND NOT gone.deferred),
    lost_on = gone.lost_on,
    error = CASE WHEN gone.deferred THEN 'DeferralTimedOut' ELSE 'WorkerLost' END,
    code = CASE WHEN gone.deferred THEN 'deferral-timed-out' ELSE 'lost' END,
    message = CASE
        WHEN gone.deferred THEN 'it was deferred, and no result came in time'
        WHEN gone.is_last THEN (lost + begun) || ' workers vanished while they ran it: '
            || gone.lost_on
        ELSE 'the worker ' || worker || ' vanished' END,
    worker = NULL, lease_s = NULL, token = NULL, ready_s = 0, ended_ms = :now_ms,
    updated_ms = :now_ms
FROM gone WHERE tasks.id = gone.id
RETURNING job_id, step, idx, state;

-- name: unblock
UPDATE tasks AS t SET state = 'pending', ready_s = 0, updated_ms = :now_ms
FROM jsonb_each(:places) AS w
WHERE t.job_id = w.value ->> 0 AND t.step = w.value ->> 1
  AND t.idx BETWEEN w.value ->> 2 AND w.value ->> 3
  AND t.state = 'blocked' AND NOT {waits}
RETURNING id;

-- name: satisfied
-- Whether a step without 'same' edges could start now.
SELECT NOT {waits} FROM (SELECT :job AS job_id, :step AS step, 0 AS idx) AS t;

-- name: to_sweep
-- A few active jobs, each time the next ones.
SELECT id FROM jobs INDEXED BY jobs_active
WHERE state IN ('pending', 'running', 'draining') AND id > :after ORDER BY id LIMIT :limit;

-- name: unsettled
-- Active jobs that were left behind: a task of theirs could start or be claimed, or nothing is left
-- to do. Of a step's blocked tasks the first is looked at. All wait for the same, except chunk by
-- chunk: and there, one that was missed becomes the first once those before it are done.
SELECT j.id FROM jobs AS j
WHERE j.id IN (SELECT value FROM json_each(:jobs)) AND j.state IN ('pending', 'running', 'draining') AND (
    NOT EXISTS (SELECT 1 FROM unfinished AS u WHERE u.job_id = j.id)
    OR EXISTS (
        SELECT 1 FROM steps AS s
        CROSS JOIN tasks AS t ON t.job_id = s.job_id AND t.step = s.no AND t.idx = (
            SELECT min(b.idx) FROM tasks AS b
            WHERE b.job_id = s.job_id AND b.step = s.no AND b.state = 'blocked')
        WHERE s.job_id = j.id AND NOT {waits})
    OR EXISTS (
        SELECT 1 FROM steps AS s WHERE s.job_id = j.id
        AND NOT EXISTS (SELECT 1 FROM ready AS r WHERE r.job_id = j.id AND r.step = s.no)
        AND EXISTS (
            SELECT 1 FROM tasks AS t WHERE t.job_id = j.id AND t.step = s.no
            AND {claimable_states})));

-- name: settle
UPDATE jobs AS j SET updated_ms = :now_ms, reason = NULL, state = CASE
    WHEN EXISTS (SELECT 1 FROM tasks WHERE job_id = j.id AND (state = 'failed' OR state = 'cancelled')
                 AND state = 'failed' AND NOT gap) THEN 'failed'
    WHEN EXISTS (SELECT 1 FROM tasks WHERE job_id = j.id AND (state = 'failed' OR state = 'cancelled')
                 AND NOT gap) THEN 'cancelled'
    ELSE 'done' END
WHERE j.id IN (SELECT value FROM json_each(:jobs)) AND j.state IN ('pending', 'running', 'draining')
  AND NOT EXISTS (SELECT 1 FROM unfinished AS u WHERE u.job_id = j.id)
RETURNING id;

-- name: any_stopped
SELECT EXISTS (
    SELECT 1 FROM tasks WHERE job_id = :job AND (state = 'failed' OR state = 'cancelled')
);

-- name: cancel_hopeless
-- A task whose input has stopped will never end well, whatever it does now. If the input is a gap,
-- so is this; a gap that also lacks another input is one no longer.
UPDATE tasks AS t SET state = 'cancelled', code = 'input-stopped', refusals = 0, worker = NULL,
    lease_s = NULL, token = NULL, updated_ms = :now_ms,
    gap = NOT EXISTS (
        SELECT 1 FROM stopped_inputs AS i
        WHERE i.job_id = :job AND i.step = :step AND NOT i.gap AND (i.at IS NULL OR i.at = t.idx)),
    message = (
        SELECT i.message FROM stopped_inputs AS i
        WHERE i.job_id = :job AND i.step = :step AND (i.at IS NULL OR i.at = t.idx)
        ORDER BY i.gap LIMIT 1)
WHERE t.job_id = :job AND t.step = :step AND t.idx BETWEEN :first AND :last
  AND (t.state NOT IN ('done', 'failed', 'cancelled') OR t.state = 'cancelled' AND t.gap)
  AND EXISTS (
    SELECT 1 FROM stopped_inputs AS i
    WHERE i.job_id = :job AND i.step = :step AND (i.at IS NULL OR i.at = t.idx));

-- name: cancel_all
UPDATE tasks
SET state = 'cancelled', code = 'cancelled', message = :message, refusals = 0, worker = NULL,
    lease_s = NULL, token = NULL, updated_ms = :now_ms
WHERE job_id = :job AND state NOT IN ('done', 'failed', 'cancelled');

-- name: afresh
-- A fresh set of attempts, a new fence.
fence = fence + 1, attempts = 0, begun = 0, lost = 0, lost_on = NULL, refusals = 0, ready_s = 0,
    lease_s = NULL, worker = NULL, token = NULL, progress = 0, adopted = 0, gap = 0,
    receipt = NULL, files = NULL, result = NULL, error = NULL, started_ms = NULL, ended_ms = NULL,
    updated_ms = :now_ms

-- name: put_back
-- Tasks that must run again, or wait again.
UPDATE tasks SET state = :state, code = :code, message = :message, {afresh}
WHERE job_id = :job AND step = :step AND idx BETWEEN :first AND :last
  AND state IN (SELECT value FROM json_each(:states))
RETURNING id;

-- name: send_back
-- Tasks that wait again, because an input is not done any more.
UPDATE tasks AS t SET state = 'blocked', code = NULL, message = NULL, {afresh}
WHERE t.job_id = :job AND t.step = :step AND t.idx BETWEEN :first AND :last
  AND t.state <> 'blocked' AND {waits}
RETURNING id;

-- name: job_restarts
UPDATE jobs SET state = 'running', reason = NULL, updated_ms = :now_ms
WHERE id = :job AND state IN ('done', 'failed', 'cancelled');

-- name: job_ends
UPDATE jobs SET state = 'cancelled', reason = :message, updated_ms = :now_ms
WHERE id = :job AND state IN ('pending', 'running', 'draining') RETURNING id;

-- name: mark
UPDATE jobs SET state = :state, reason = :reason, updated_ms = :now_ms
WHERE key = :key AND state IN (SELECT value FROM json_each(:before)) RETURNING id;

-- name: stopped
SELECT step, idx FROM tasks
WHERE job_id = :job AND (state = 'failed' OR state = 'cancelled')
  AND (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids)))
ORDER BY id;

-- name: done_among
SELECT id, job_id, step, idx FROM tasks
WHERE state = 'done' AND id IN (SELECT value FROM json_each(:ids))
  AND job_id IN (SELECT id FROM jobs) -- not of one that is being deleted
ORDER BY id;

-- name: done_plans
SELECT step FROM tasks WHERE job_id = :job AND state = 'done'
AND step IN (SELECT value FROM json_each(:plans));

-- name: outputs
SELECT t.idx, t.state, coalesce(t.receipt, t.key), t.result, t.files
FROM jobs AS j
CROSS JOIN steps AS s ON s.job_id = j.id AND s.name = :step
CROSS JOIN tasks AS t ON t.job_id = j.id AND t.step = s.no AND t.idx > :after
WHERE j.key = :job ORDER BY t.idx LIMIT :limit;

-- name: task_columns
SELECT t.id, t.step, t.idx, t.key, t.chunk, t.state, t.attempts, t.fence, t.worker, t.progress,
    t.error, t.message, t.adopted, t.started_ms, t.ended_ms, t.code, t.lost, t.refusals,
    CASE WHEN t.state = 'retrying' AND t.ready_s > :now_s
    THEN :now_ms + CAST((t.ready_s - :now_s) * 1000 AS INTEGER) END

-- name: receipts
{task_columns}, coalesce(t.receipt, t.key), t.result, t.files
FROM tasks AS t INDEXED BY tasks_with_files
WHERE t.job_id = :job AND t.id > :after AND t.files IS NOT NULL AND t.state = 'done'
ORDER BY t.id LIMIT :limit;

-- name: deferred
{task_columns}, t.job_id, d.fence
FROM deferrals AS d JOIN tasks AS t ON t.id = d.task_id
WHERE d.token = :token
ORDER BY (t.state = 'running' AND t.fence = d.fence) DESC, t.id DESC LIMIT 1;

-- name: workers
SELECT DISTINCT worker FROM tasks
WHERE worker IS NOT NULL AND (state = 'leased' OR state = 'running') ORDER BY worker;

-- name: events_settled
-- What is committed is in order.
SELECT coalesce(max(seq), 0) FROM events;

-- name: events
SELECT e.seq - e.n + 1 + coalesce(i.key, 0), e.at_ms, coalesce(j.key, ''), i.value,
       s.name || CASE WHEN t.chunk IS NULL THEN '' ELSE '[' || t.idx || ']' END,
       e.was, e.now, e.fence, e.worker, e.message, e.progress, e.code,
       s.name, t.idx
FROM events AS e
LEFT JOIN json_each(e.tasks) AS i
LEFT JOIN jobs AS j ON j.id = e.job_id
LEFT JOIN tasks AS t ON t.id = i.value
LEFT JOIN steps AS s ON s.job_id = t.job_id AND s.no = t.step
WHERE e.seq > :after AND e.seq - e.n + 1 + coalesce(i.key, 0) > :after
ORDER BY e.seq, i.key LIMIT :limit;

-- name: events_of_job
SELECT e.seq - e.n + 1 + coalesce(i.key, 0), e.at_ms, coalesce(j.key, ''), i.value,
       s.name || CASE WHEN t.chunk IS NULL THEN '' ELSE '[' || t.idx || ']' END,
       e.was, e.now, e.fence, e.worker, e.message, e.progress, e.code,
       s.name, t.idx
FROM events AS e INDEXED BY events_of_job
LEFT JOIN json_each(e.tasks) AS i
LEFT JOIN jobs AS j ON j.id = e.job_id
LEFT JOIN tasks AS t ON t.id = i.value
LEFT JOIN steps AS s ON s.job_id = t.job_id AND s.no = t.step
WHERE e.job_id = :job AND e.seq > :after AND e.seq - e.n + 1 + coalesce(i.key, 0) > :after
ORDER BY e.seq, i.key LIMIT :limit;

-- name: delete_job
-- With its steps, edges and counts; and at once what could still change, because whoever had a lease
-- of it might give a sign of life.
DELETE FROM jobs WHERE id = :job
AND NOT EXISTS (
    SELECT 1 FROM tasks WHERE job_id = :job AND (state = 'leased' OR state = 'running'));
DELETE FROM tasks AS t WHERE t.job_id = :job AND (t.state = 'blocked' OR {claimable_states})
AND NOT EXISTS (SELECT 1 FROM jobs WHERE id = :job);
INSERT INTO forgotten SELECT :job WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE id = :job)
RETURNING job_id;

-- name: deleted
SELECT job_id FROM forgotten;

-- name: delete_tasks
DELETE FROM tasks WHERE id IN (SELECT id FROM tasks WHERE job_id = :job LIMIT :most) RETURNING id;

-- name: delete_events
DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE job_id = :job LIMIT :most)
RETURNING seq;

-- name: all_deleted
DELETE FROM forgotten WHERE job_id = :job;

-- name: job_columns
j.id, j.revision, j.state, j.created_ms, j.updated_ms, j.reason, (
    SELECT json_group_array(json_array(step, state, n)) FROM (
        SELECT step, state, n FROM counts WHERE job_id = j.id AND n > 0 ORDER BY step))

-- name: jobs_by_key
SELECT {job_columns} FROM jobs AS j
WHERE key >= :first AND key < :last AND +id < :before AND (:state IS NULL OR state = :state)
  AND (:pipeline IS NULL OR pipeline = :pipeline) AND (:source IS NULL OR source = :source)
ORDER BY +id DESC LIMIT :limit;

-- name: jobs_of_source
SELECT {job_columns} FROM jobs AS j
WHERE source = :source AND id < :before AND (:state IS NULL OR state = :state)
  AND (:pipeline IS NULL OR pipeline = :pipeline)
ORDER BY id DESC LIMIT :limit;

-- name: jobs_of_pipeline
SELECT {job_columns} FROM jobs AS j
WHERE pipeline || '' = :pipeline AND state || '' = :state AND id < :before
ORDER BY id DESC LIMIT :limit;

-- name: jobs_in_states
SELECT {job_columns} FROM jobs AS j
WHERE state || '' = :state AND id < :before ORDER BY id DESC LIMIT :limit;

-- name: newest_jobs
SELECT {job_columns} FROM jobs AS j
WHERE id < :before ORDER BY id DESC LIMIT :limit;
