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
END;

-- name: insert_job
INSERT INTO jobs (key, pipeline, code, source, spec, state, priority, begin_ms, created_ms, updated_ms)
VALUES (:key, :pipeline, :code, :source, :spec, 'pending', :priority, :begin_ms, :now_ms, :now_ms)
ON CONFLICT (key) DO NOTHING
RETURNING id;

-- name: insert_step
INSERT INTO steps (job_id, no, class, name, attempts, needs, prefers, concurrency, gap)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: add_class
INSERT INTO classes (code, pipeline, step, needs, prefers)
VALUES (:code, :pipeline, :step, :needs, :prefers)
ON CONFLICT DO UPDATE SET step = excluded.step
RETURNING id;

-- name: update_step
UPDATE steps SET class = ?, attempts = ?, needs = ?, prefers = ?, concurrency = ?, gap = ?
WHERE job_id = ? AND no = ?;

-- name: update_ready
UPDATE ready SET class = ? WHERE job_id = ? AND step = ?;

-- name: insert_edge
INSERT INTO edges (job_id, step, upstream, kind, plan) VALUES (?, ?, ?, ?, ?);

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
SELECT job_id, step FROM tasks
WHERE id = ? AND fence = ? AND key = ? AND state NOT IN ('blocked', 'done', 'failed', 'cancelled');

-- name: page_now
-- How many there are, and another sum than before where one was replaced.
SELECT count(*), coalesce(sum(fence), 0) FROM tasks
WHERE job_id = :job AND step = :step AND idx BETWEEN :first AND :last;

-- name: count_surplus
SELECT state, count(*) FROM tasks WHERE job_id = :job AND step = :step AND idx >= :count
GROUP BY state;

-- name: delete_surplus
DELETE FROM tasks WHERE job_id = :job AND step = :step AND idx >= :count;

-- name: add_count
INSERT INTO counts (job_id, step, state, n) VALUES (?, ?, ?, ?)
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

-- name: active_jobs
SELECT id FROM jobs INDEXED BY jobs_active
WHERE state IN ('pending', 'running', 'draining') AND id > :after ORDER BY id LIMIT :limit;

-- name: open_steps
-- Steps of a job that have a task to claim. Those that a claim parked are looked at again.
INSERT INTO ready (job_id, step, class, priority, turn, parked, begin_ms)
SELECT j.id, s.no, s.class, j.priority, j.turn,
    CASE WHEN j.begin_ms > :now_ms THEN 2 ELSE 0 END, j.begin_ms
FROM jobs AS j JOIN steps AS s ON s.job_id = j.id
WHERE j.id = :job AND j.state IN ('pending', 'running', 'draining') AND EXISTS (
    SELECT 1 FROM tasks AS t WHERE t.job_id = j.id AND t.step = s.no
    AND (t.state = 'pending' OR t.state = 'retrying' OR t.state = 'abandoned'
         OR t.state = 'corrupt'))
ON CONFLICT DO UPDATE SET parked = excluded.parked WHERE parked <> excluded.parked;

-- name: retries_due
UPDATE ready SET parked = 0 WHERE parked = 1 AND due_s <= :now_s;

-- name: jobs_due
UPDATE ready SET parked = 0 WHERE parked = 2 AND begin_ms <= :now_ms;

-- name: ready_of_class
SELECT priority, turn, job_id, step FROM ready INDEXED BY ready_in_turn
WHERE parked = 0 AND class = :class
  AND (-priority, turn, job_id) > (:priority, :turn, :job) AND priority <= -:priority
ORDER BY priority DESC, turn, job_id LIMIT :limit;

-- name: ready_of_jobs
SELECT r.priority, r.turn, r.job_id, r.step, r.class FROM jobs AS j
JOIN ready AS r ON r.job_id = j.id
WHERE r.parked = 0 AND j.key IN (SELECT value FROM json_each(:keys))
ORDER BY r.priority DESC, r.turn, r.job_id;

-- name: revisions
SELECT id, revision FROM jobs WHERE id = ?;

-- name: any_due
SELECT EXISTS (
    SELECT 1 FROM tasks WHERE job_id = :job AND step = :step AND ready_s <= :now_s
    AND (state = 'pending' OR state = 'retrying' OR state = 'abandoned' OR state = 'corrupt'));

-- name: next_due
SELECT min(ready_s) FROM tasks WHERE job_id = :job AND step = :step
AND (state = 'pending' OR state = 'retrying' OR state = 'abandoned' OR state = 'corrupt');

-- name: park
UPDATE ready SET parked = 1, due_s = :due_s WHERE job_id = :job AND step = :step;

-- name: close_step
DELETE FROM ready WHERE job_id = :job AND step = :step;

-- name: held_of_step
-- Over every job of the same pipeline, because a limit protects something they share.
SELECT count(*) FROM tasks AS t INDEXED BY tasks_held
CROSS JOIN steps AS s ON s.job_id = t.job_id AND s.no = t.step
CROSS JOIN classes AS c ON c.id = s.class
WHERE (t.state = 'leased' OR t.state = 'running') AND c.pipeline = :pipeline AND c.step = :name;

-- name: claimable
-- The fence as it will be, and which attempt it is.
SELECT id, fence + 1, job_id, step, state, NULL, message, idx, key, attempts + 1, chunk, lost
FROM tasks
WHERE job_id = :job AND step = :step AND ready_s <= :now_s AND updated_ms <= :since_ms
  AND (state = 'pending' OR state = 'retrying' OR state = 'abandoned' OR state = 'corrupt')
  AND (refusals = 0 OR NOT EXISTS (
    SELECT 1 FROM refusals AS r
    WHERE r.task_id = tasks.id AND r.host = :host AND r.until_s > :now_s))
ORDER BY id LIMIT :room;

-- name: claim
UPDATE tasks
SET state = 'leased', fence = fence + 1, begun = :begin, worker = :worker,
    lease_s = :lease_s, progress = 0, started_ms = :now_ms, ended_ms = NULL,
    updated_ms = :now_ms
WHERE id BETWEEN :first AND :last;

-- name: job_runs
UPDATE jobs SET state = 'running', turn = :turn,
    updated_ms = CASE state WHEN 'running' THEN updated_ms ELSE :now_ms END
WHERE id = :job;

-- name: ready_turn
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
FROM jsonb_each(:beats) AS beat
WHERE tasks.id = beat.value ->> 0 AND fence = beat.value ->> 1 AND state = 'running'
  AND round(progress * 100) NOT IN (0, told)
  AND told_ms NOT BETWEEN :now_ms - :every_ms + 1 AND :now_ms;

-- name: fate
SELECT t.state, t.fence, j.state, t.key FROM tasks AS t JOIN jobs AS j ON j.id = t.job_id
WHERE t.id = ?;

-- name: can_end
SELECT id, fence, job_id, step, state, worker, NULL, idx, key FROM tasks
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
SET state = CASE WHEN :permanent OR tasks.attempts + 1 >= s.attempts
        THEN 'failed' ELSE 'retrying' END,
    gap = (:permanent OR tasks.attempts + 1 >= s.attempts) AND s.gap,
    refusals = CASE WHEN :permanent OR tasks.attempts + 1 >= s.attempts THEN 0 ELSE refusals END,
    attempts = tasks.attempts + 1, ready_s = :ready_s, error = :error, code = :code,
    message = :message, worker = NULL, lease_s = NULL, token = NULL, ended_ms = :now_ms,
    updated_ms = :now_ms
FROM steps AS s
WHERE tasks.id = :task AND tasks.fence = :fence AND tasks.key = coalesce(:key, tasks.key)
  AND s.job_id = tasks.job_id AND s.no = tasks.step
  AND (state = 'leased' OR state = 'running' OR state = 'abandoned')
RETURNING job_id, step, idx, state;

-- name: release
UPDATE tasks
SET state = 'abandoned', code = :reason, message = coalesce(:message, :reason), ready_s = 0,
    worker = NULL, lease_s = NULL, token = NULL, updated_ms = :now_ms
FROM jsonb_each(:leases) AS lease
WHERE tasks.id = lease.value ->> 0 AND fence = lease.value ->> 1
  AND state IN ('leased', 'running')
RETURNING tasks.id, tasks.job_id;

-- name: refuse
INSERT INTO refusals (task_id, host, code, message, until_s)
SELECT value, :host, :code, :message, :until_s FROM json_each(:ids) WHERE true
ON CONFLICT DO UPDATE
SET code = excluded.code, message = excluded.message, until_s = excluded.until_s;

-- name: refusals
SELECT host, code, min(message), count(*), max(until_s) FROM refusals
WHERE until_s > :now_s GROUP BY host, code ORDER BY host, code;

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
    WHERE (t.state = 'leased' OR t.state = 'running')
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
-- The one rule for when a task may start; every path that ends a task runs it again.
UPDATE tasks AS t SET state = 'pending', ready_s = 0, updated_ms = :now_ms
WHERE t.job_id = :job AND t.step = :step AND t.idx BETWEEN :first AND :last
  AND t.state = 'blocked'
  AND NOT EXISTS (
    SELECT 1 FROM edges AS e WHERE e.job_id = :job AND e.step = :step AND CASE e.kind
    WHEN 'one' THEN NOT EXISTS (
        SELECT 1 FROM tasks AS u WHERE u.job_id = :job AND u.step = e.upstream
        AND u.idx = 0 AND u.state = 'done')
    WHEN 'same' THEN NOT EXISTS (
        SELECT 1 FROM tasks AS u WHERE u.job_id = :job AND u.step = e.upstream
        AND u.idx = t.idx AND u.state = 'done')
    ELSE EXISTS (
        SELECT 1 FROM unfinished AS u WHERE u.job_id = :job AND u.step = e.upstream)
      OR EXISTS (
        SELECT 1 FROM tasks AS u WHERE u.job_id = :job AND u.step = e.upstream
        AND (u.state = 'failed' OR u.state = 'cancelled') AND NOT u.gap)
      OR NOT EXISTS (
        SELECT 1 FROM tasks AS p WHERE p.job_id = :job AND p.step = e.plan
        AND p.idx = 0 AND p.state = 'done')
    END)
RETURNING id;

-- name: blocked_steps
SELECT no FROM steps AS s WHERE job_id = ? AND EXISTS (
    SELECT 1 FROM tasks AS t WHERE t.job_id = s.job_id AND t.step = s.no AND t.state = 'blocked')
ORDER BY no;

-- name: satisfied
-- Whether a step without 'same' edges could start now.
SELECT NOT EXISTS (
    SELECT 1 FROM edges AS e WHERE e.job_id = :job AND e.step = :step AND CASE e.kind
    WHEN 'one' THEN NOT EXISTS (
        SELECT 1 FROM tasks AS u WHERE u.job_id = :job AND u.step = e.upstream
        AND u.idx = 0 AND u.state = 'done')
    WHEN 'same' THEN 1
    ELSE EXISTS (
        SELECT 1 FROM unfinished AS u WHERE u.job_id = :job AND u.step = e.upstream)
      OR EXISTS (
        SELECT 1 FROM tasks AS u WHERE u.job_id = :job AND u.step = e.upstream
        AND (u.state = 'failed' OR u.state = 'cancelled') AND NOT u.gap)
      OR NOT EXISTS (
        SELECT 1 FROM tasks AS p WHERE p.job_id = :job AND p.step = e.plan
        AND p.idx = 0 AND p.state = 'done')
    END);

-- name: settle
UPDATE jobs SET updated_ms = :now_ms, reason = NULL, state = CASE
    WHEN EXISTS (SELECT 1 FROM tasks WHERE job_id = :job AND state = 'failed'
                 AND NOT gap) THEN 'failed'
    WHEN EXISTS (SELECT 1 FROM tasks WHERE job_id = :job AND (state = 'failed' OR state = 'cancelled')
                 AND NOT gap) THEN 'cancelled'
    ELSE 'done' END
WHERE id = :job AND state IN ('pending', 'running', 'draining')
  AND NOT EXISTS (SELECT 1 FROM unfinished WHERE job_id = :job);

-- name: any_stopped
SELECT EXISTS (
    SELECT 1 FROM tasks WHERE job_id = ? AND (state = 'failed' OR state = 'cancelled')
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

-- name: put_back
-- Tasks that must run again, or wait again: a fresh set of attempts, a new fence.
UPDATE tasks
SET state = :state, fence = fence + 1, attempts = 0, begun = 0, lost = 0, lost_on = NULL,
    refusals = 0, ready_s = 0, lease_s = NULL, worker = NULL, token = NULL, progress = 0,
    adopted = 0, gap = 0, receipt = NULL, files = NULL, result = NULL, error = NULL, code = :code,
    message = :message, started_ms = NULL, ended_ms = NULL, updated_ms = :now_ms
WHERE job_id = :job AND step = :step AND idx BETWEEN :first AND :last
  AND state IN (SELECT value FROM json_each(:states))
RETURNING id;

-- name: job_restarts
UPDATE jobs SET state = 'running', reason = NULL, updated_ms = :now_ms
WHERE id = :job AND state IN ('done', 'failed', 'cancelled');

-- name: done_plans
SELECT step FROM tasks WHERE job_id = :job AND state = 'done'
AND step IN (SELECT value FROM json_each(:plans));

-- name: outputs
SELECT t.idx, t.state, coalesce(t.receipt, t.key), t.result, t.files
FROM jobs AS j
CROSS JOIN steps AS s ON s.job_id = j.id AND s.name = :step
CROSS JOIN tasks AS t ON t.job_id = j.id AND t.step = s.no AND t.idx > :after
WHERE j.key = :job ORDER BY t.idx LIMIT :limit;

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

-- name: set_limit
INSERT INTO limits (name, running, per_minute, paused, tokens, filled_ms)
VALUES (:name, :running, :per_minute, :paused, :tokens, :now_ms)
ON CONFLICT (name) DO UPDATE
SET running = excluded.running, per_minute = excluded.per_minute, paused = excluded.paused,
    tokens = min(tokens, excluded.tokens);

-- name: held_under_job
SELECT count(*) FROM jobs AS j JOIN tasks AS t ON t.job_id = j.id
WHERE j.key = ? AND (t.state = 'leased' OR t.state = 'running');

-- name: held_under_pipeline
SELECT count(*) FROM tasks AS t INDEXED BY tasks_held
CROSS JOIN jobs AS j ON j.id = t.job_id
WHERE (t.state = 'leased' OR t.state = 'running') AND j.pipeline = ?;

-- name: held_under_label
SELECT count(*) FROM tasks AS t INDEXED BY tasks_held
CROSS JOIN steps AS s ON s.job_id = t.job_id AND s.no = t.step
WHERE ? IN (s.needs, s.prefers) AND (t.state = 'leased' OR t.state = 'running');

-- name: forget_job
-- With its steps, edges and counts.
DELETE FROM jobs WHERE id = :job
AND NOT EXISTS (
    SELECT 1 FROM tasks WHERE job_id = :job AND (state = 'leased' OR state = 'running'))
RETURNING id;

-- name: forget_unfinished
-- At once, because whoever had a lease of one might still give a sign of life for it.
DELETE FROM tasks WHERE job_id = :job
AND (state = 'blocked' OR state = 'pending' OR state = 'retrying' OR state = 'abandoned'
     OR state = 'corrupt');

-- name: forget_tasks
DELETE FROM tasks WHERE id IN (SELECT id FROM tasks WHERE job_id = :job LIMIT :most);

-- name: forget_events
DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE job_id = :job LIMIT :most);

-- name: jobs_by_key
SELECT id, revision, state, created_ms, updated_ms, reason FROM jobs
WHERE key >= :first AND key < :last AND +id < :before AND (:state IS NULL OR state = :state)
  AND (:pipeline IS NULL OR pipeline = :pipeline) AND (:source IS NULL OR source = :source)
ORDER BY +id DESC LIMIT :limit;

-- name: jobs_of_source
SELECT id, revision, state, created_ms, updated_ms, reason FROM jobs
WHERE source = :source AND id < :before AND (:state IS NULL OR state = :state)
  AND (:pipeline IS NULL OR pipeline = :pipeline)
ORDER BY id DESC LIMIT :limit;

-- name: jobs_of_pipeline
SELECT id, revision, state, created_ms, updated_ms, reason FROM jobs
WHERE pipeline || '' = :pipeline AND state || '' = :state AND id < :before
ORDER BY id DESC LIMIT :limit;

-- name: jobs_in_state
SELECT id, revision, state, created_ms, updated_ms, reason FROM jobs
WHERE state || '' = :state AND id < :before ORDER BY id DESC LIMIT :limit;

-- name: newest_jobs
SELECT id, revision, state, created_ms, updated_ms, reason FROM jobs
WHERE id < :before ORDER BY id DESC LIMIT :limit;
