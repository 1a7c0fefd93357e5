CREATE TABLE adapters (
	adapter TEXT NOT NULL, 
	alias TEXT NOT NULL, 
	base TEXT NOT NULL, 
	sha256 TEXT NOT NULL, 
	path TEXT NOT NULL, 
	capability TEXT, 
	job TEXT, 
	origin TEXT NOT NULL, 
	state TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	replicas TEXT NOT NULL, 
	distance FLOAT, 
	from_base FLOAT, 
	incumbent TEXT, 
	gate TEXT, 
	since TEXT, 
	cause TEXT NOT NULL, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, merge TEXT, panel TEXT, role TEXT DEFAULT 'agent' NOT NULL, user_gate TEXT, 
	PRIMARY KEY (adapter)
);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE calls (
	call TEXT NOT NULL, 
	session TEXT NOT NULL, 
	alias TEXT, 
	base TEXT, 
	policy TEXT, 
	task TEXT, 
	parent TEXT, 
	parent_messages BIGINT, 
	stream BOOLEAN, 
	sampling TEXT, 
	started TEXT, 
	outcome TEXT, 
	finish_reason TEXT, 
	prompt_tokens BIGINT, 
	completion_tokens BIGINT, 
	duration_ms BIGINT, 
	trainable BOOLEAN, 
	untrainable_because TEXT, 
	invalid_tool_calls BIGINT, 
	error TEXT, 
	ended TEXT, 
	partition BIGINT NOT NULL, 
	event_source TEXT NOT NULL, 
	started_sequence BIGINT, 
	ended_sequence BIGINT, 
	started_offset BIGINT, 
	ended_offset BIGINT, endpoint TEXT, attribution TEXT, client TEXT, purpose TEXT, upstream TEXT, status BIGINT, routed TEXT, rollout TEXT, shares TEXT, holdout FLOAT, held_out BOOLEAN, member TEXT, skill TEXT, router_doubt TEXT, router_ms BIGINT, 
	PRIMARY KEY (call)
);
CREATE TABLE cycles (
	round BIGINT NOT NULL, 
	"trigger" TEXT NOT NULL, 
	rollouts BIGINT NOT NULL, 
	judged BIGINT NOT NULL, 
	unjudged BIGINT NOT NULL, 
	failed BIGINT NOT NULL, 
	patterns BIGINT NOT NULL, 
	other BIGINT NOT NULL, 
	position TEXT NOT NULL, 
	time TEXT, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, 
	PRIMARY KEY (round)
);
CREATE TABLE dead_letters (
	stream TEXT NOT NULL, 
	partition BIGINT NOT NULL, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	type TEXT, 
	reason TEXT NOT NULL, 
	"offset" BIGINT NOT NULL, rollout TEXT, 
	PRIMARY KEY (stream, partition, event_source, sequence)
);
CREATE TABLE erasures (
	keyid TEXT NOT NULL, 
	events BIGINT NOT NULL, 
	rollouts BIGINT NOT NULL, 
	time TEXT, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, 
	PRIMARY KEY (keyid)
);
CREATE TABLE evaluations (
	adapter TEXT NOT NULL, 
	number BIGINT NOT NULL, 
	incumbent TEXT, 
	environment TEXT NOT NULL, 
	tasks BIGINT NOT NULL, 
	trials BIGINT NOT NULL, 
	incumbent_pass FLOAT NOT NULL, 
	candidate_pass FLOAT NOT NULL, 
	event TEXT NOT NULL, 
	time TEXT, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, 
	PRIMARY KEY (adapter, number)
);
CREATE TABLE feedback (
	feedback TEXT NOT NULL, 
	session TEXT NOT NULL, 
	call TEXT, 
	score FLOAT, 
	success BOOLEAN, 
	tags TEXT NOT NULL, 
	verified BOOLEAN NOT NULL, 
	time TEXT, 
	partition BIGINT NOT NULL, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, 
	PRIMARY KEY (feedback)
);
CREATE TABLE gateways (
	gateway TEXT NOT NULL, 
	host TEXT NOT NULL, 
	started FLOAT NOT NULL, 
	seen FLOAT NOT NULL, 
	position BIGINT NOT NULL, 
	in_flight TEXT NOT NULL, 
	open_sessions TEXT NOT NULL, 
	PRIMARY KEY (gateway)
);
CREATE TABLE job_rounds (
	job TEXT NOT NULL, 
	number BIGINT NOT NULL, 
	cycle TEXT NOT NULL, 
	directive TEXT NOT NULL, 
	tasks TEXT NOT NULL, 
	rejected BIGINT NOT NULL, 
	rollouts BIGINT, 
	failures BIGINT, 
	unread BIGINT, 
	pools TEXT, 
	time TEXT, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, 
	PRIMARY KEY (job, number)
);
CREATE TABLE jobs (
	job TEXT NOT NULL, 
	cycle TEXT, 
	alias TEXT NOT NULL, 
	base TEXT NOT NULL, 
	capability TEXT, 
	spec TEXT NOT NULL, 
	minutes FLOAT NOT NULL, 
	outcome TEXT, 
	reason TEXT, 
	adapter TEXT, 
	sha256 TEXT, 
	steps BIGINT, 
	rollouts BIGINT, 
	seconds FLOAT, 
	attempts BIGINT, 
	event TEXT NOT NULL, 
	requested TEXT, 
	ended TEXT, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, skill TEXT, teaches TEXT, 
	PRIMARY KEY (job)
);
CREATE TABLE leaders (
	name TEXT NOT NULL, 
	epoch BIGINT NOT NULL, 
	holder TEXT NOT NULL, 
	since TEXT, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE learning_cycles (
	cycle TEXT NOT NULL, 
	alias TEXT NOT NULL, 
	base TEXT NOT NULL, 
	number BIGINT NOT NULL, 
	environment TEXT NOT NULL, 
	"trigger" TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	position TEXT NOT NULL, 
	slot TEXT, 
	acted TEXT, 
	round BIGINT, 
	directive TEXT, 
	findings TEXT, 
	summary TEXT, 
	analyzer TEXT, 
	trouble TEXT, 
	accepted BIGINT NOT NULL, 
	rejected BIGINT NOT NULL, 
	job TEXT, 
	outcome TEXT, 
	ended_because TEXT, 
	event TEXT NOT NULL, 
	started TEXT, 
	diagnosed TEXT, 
	directed TEXT, 
	ended TEXT, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, panel TEXT, 
	PRIMARY KEY (cycle)
);
CREATE TABLE leases (
	name TEXT NOT NULL, 
	holder TEXT NOT NULL, 
	epoch BIGINT, 
	expires FLOAT NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE operator_actions (
	event TEXT NOT NULL, 
	actor TEXT NOT NULL, 
	action TEXT NOT NULL, 
	arguments TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	time TEXT, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, 
	PRIMARY KEY (event)
);
CREATE TABLE pattern_rounds (
	alias TEXT NOT NULL, 
	base TEXT NOT NULL, 
	pattern TEXT NOT NULL, 
	round BIGINT NOT NULL, 
	failures BIGINT NOT NULL, 
	failed BIGINT NOT NULL, 
	attempts BIGINT NOT NULL, 
	passes BIGINT NOT NULL, 
	pass_rate FLOAT NOT NULL, 
	recurrence FLOAT NOT NULL, 
	streak BIGINT NOT NULL, 
	absent BIGINT NOT NULL, 
	priority FLOAT NOT NULL, 
	status TEXT NOT NULL, learnability FLOAT DEFAULT '1' NOT NULL, 
	PRIMARY KEY (alias, base, pattern, round)
);
CREATE TABLE patterns (
	alias TEXT NOT NULL, 
	base TEXT NOT NULL, 
	pattern TEXT NOT NULL, 
	category TEXT NOT NULL, 
	pivot TEXT NOT NULL, 
	failures BIGINT NOT NULL, 
	attempts BIGINT NOT NULL, 
	passes BIGINT NOT NULL, 
	pass_rate FLOAT NOT NULL, 
	recurrence FLOAT NOT NULL, 
	streak BIGINT NOT NULL, 
	absent BIGINT NOT NULL, 
	priority FLOAT NOT NULL, 
	status TEXT NOT NULL, 
	examples TEXT NOT NULL, 
	first_round BIGINT NOT NULL, 
	round BIGINT NOT NULL, learnability FLOAT DEFAULT '1' NOT NULL, operator TEXT, operator_reason TEXT, anchors TEXT DEFAULT '{}' NOT NULL, 
	PRIMARY KEY (alias, base, pattern)
);
CREATE TABLE plan_changes (
	plans TEXT NOT NULL, 
	"plan" TEXT NOT NULL, 
	round BIGINT NOT NULL, 
	revision BIGINT NOT NULL, 
	definition TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	failures TEXT NOT NULL, 
	tries_before BIGINT NOT NULL, 
	accepted_before BIGINT NOT NULL, 
	tries BIGINT NOT NULL, 
	accepted BIGINT NOT NULL, 
	kept BOOLEAN NOT NULL, 
	writer TEXT, 
	time TEXT, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, 
	PRIMARY KEY (plans, "plan", round)
);
CREATE TABLE plan_sets (
	plans TEXT NOT NULL, 
	alias TEXT NOT NULL, 
	base TEXT NOT NULL, 
	environment TEXT NOT NULL, 
	cycle TEXT, 
	patterns TEXT NOT NULL, 
	overlap FLOAT NOT NULL, 
	uncovered TEXT NOT NULL, 
	writer TEXT, 
	refused TEXT NOT NULL, 
	trouble TEXT NOT NULL, 
	round BIGINT NOT NULL, 
	stopped TEXT NOT NULL, 
	time TEXT, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, 
	PRIMARY KEY (plans)
);
CREATE TABLE plans (
	plans TEXT NOT NULL, 
	"plan" TEXT NOT NULL, 
	number BIGINT NOT NULL, 
	revision BIGINT NOT NULL, 
	definition TEXT NOT NULL, 
	tries BIGINT NOT NULL, 
	accepted BIGINT NOT NULL, 
	task_faults BIGINT NOT NULL, 
	user_faults BIGINT NOT NULL, 
	trajectory_faults BIGINT NOT NULL, 
	disagreements BIGINT NOT NULL, 
	time TEXT, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, 
	PRIMARY KEY (plans, "plan")
);
CREATE TABLE positions (
	stream TEXT NOT NULL, 
	partition BIGINT NOT NULL, 
	next_offset BIGINT NOT NULL, last_offset BIGINT, last_sha256 TEXT, 
	PRIMARY KEY (stream, partition)
);
CREATE TABLE projection (
	name TEXT NOT NULL, 
	fold_version BIGINT NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE repairs (
	rollout TEXT NOT NULL, 
	rules TEXT NOT NULL, 
	outcome TEXT NOT NULL, 
	category TEXT, 
	pivot TEXT, 
	edits TEXT NOT NULL, 
	replays BIGINT NOT NULL, 
	reason TEXT NOT NULL, 
	time TEXT, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, 
	PRIMARY KEY (rollout)
);
CREATE TABLE "rollouts" (
	rollout TEXT NOT NULL, 
	alias TEXT NOT NULL, 
	base TEXT NOT NULL, 
	policy TEXT NOT NULL, 
	source TEXT NOT NULL, 
	purpose TEXT NOT NULL, 
	session TEXT, 
	task TEXT, 
	task_key TEXT NOT NULL, 
	environment TEXT, 
	capability TEXT, 
	trial BIGINT, 
	seed BIGINT, 
	success BOOLEAN, 
	reward FLOAT, 
	termination TEXT, 
	time TEXT, 
	messages BIGINT NOT NULL, 
	tool_calls BIGINT NOT NULL, 
	tool_errors BIGINT NOT NULL, 
	category TEXT, 
	categories TEXT NOT NULL, 
	pivot TEXT, 
	evidence TEXT, 
	trace_key TEXT NOT NULL, 
	round BIGINT, 
	partition BIGINT NOT NULL, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, 
	malformed_calls BIGINT DEFAULT 0 NOT NULL, 
	loops BIGINT DEFAULT 0 NOT NULL, kind TEXT, tools TEXT DEFAULT '[]' NOT NULL, words TEXT, outdated BOOLEAN, member TEXT, skill TEXT, verdicts TEXT, rules BIGINT, 
	PRIMARY KEY (rollout)
);
CREATE TABLE routes (
	alias TEXT NOT NULL, 
	base TEXT NOT NULL, 
	shares TEXT NOT NULL, 
	shadow TEXT, 
	incumbent TEXT, 
	previous TEXT NOT NULL, 
	why TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	since TEXT, 
	cause TEXT NOT NULL, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, holdout FLOAT, 
	PRIMARY KEY (alias)
);
CREATE TABLE rule_versions (
	alias TEXT NOT NULL, 
	base TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	environment TEXT NOT NULL, 
	rules BIGINT NOT NULL, 
	counted BIGINT, 
	"before" BIGINT, 
	changed BIGINT, 
	PRIMARY KEY (alias, base, kind)
);
CREATE TABLE serving_steps (
	kind TEXT NOT NULL, 
	subject TEXT NOT NULL, 
	number BIGINT NOT NULL, 
	type TEXT NOT NULL, 
	state TEXT, 
	refused TEXT, 
	reason TEXT NOT NULL, 
	event TEXT NOT NULL, 
	cause TEXT, 
	time TEXT, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, 
	PRIMARY KEY (kind, subject, number)
);
CREATE TABLE session_ends (
	session_end TEXT NOT NULL, 
	session TEXT NOT NULL, 
	because TEXT NOT NULL, 
	rollout TEXT NOT NULL, 
	time TEXT, 
	partition BIGINT NOT NULL, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, 
	PRIMARY KEY (session_end)
);
CREATE TABLE skill_comparisons (
	alias TEXT NOT NULL, 
	base TEXT NOT NULL, 
	since BIGINT NOT NULL, 
	round BIGINT NOT NULL, 
	failures BIGINT NOT NULL, 
	successes BIGINT NOT NULL, 
	time TEXT, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, labeller TEXT, left_out BIGINT, refused BIGINT, 
	PRIMARY KEY (alias, base)
);
CREATE TABLE skills (
	alias TEXT NOT NULL, 
	base TEXT NOT NULL, 
	skill TEXT NOT NULL, 
	description TEXT NOT NULL, 
	patterns TEXT NOT NULL, 
	state TEXT NOT NULL, 
	delta FLOAT NOT NULL, 
	delta_deviation FLOAT NOT NULL, 
	coverage FLOAT NOT NULL, 
	coverage_deviation FLOAT NOT NULL, 
	selected BIGINT NOT NULL, 
	labellings BIGINT NOT NULL, 
	failures BIGINT NOT NULL, 
	successes BIGINT NOT NULL, 
	within TEXT, 
	examples TEXT NOT NULL, 
	round BIGINT NOT NULL, 
	time TEXT, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, labeller TEXT, 
	PRIMARY KEY (alias, base, skill)
);
CREATE TABLE sources (
	stream TEXT NOT NULL, 
	partition BIGINT NOT NULL, 
	source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	beyond BIGINT, last_sequence BIGINT, last_sha256 TEXT, 
	PRIMARY KEY (stream, partition, source)
);
CREATE TABLE spools (
	source TEXT NOT NULL, 
	host TEXT NOT NULL, 
	path TEXT NOT NULL, 
	seen FLOAT NOT NULL, 
	ends TEXT NOT NULL, 
	PRIMARY KEY (source)
);
CREATE TABLE task_bodies (
	task TEXT NOT NULL, 
	environment TEXT NOT NULL, 
	body TEXT NOT NULL, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, keyid TEXT, operator TEXT, 
	PRIMARY KEY (task)
);
CREATE TABLE task_patterns (
	alias TEXT NOT NULL, 
	base TEXT NOT NULL, 
	task_key TEXT NOT NULL, 
	pattern TEXT NOT NULL, 
	PRIMARY KEY (alias, base, task_key, pattern)
);
CREATE TABLE task_rejections (
	event TEXT NOT NULL, 
	cycle TEXT NOT NULL, 
	alias TEXT NOT NULL, 
	base TEXT NOT NULL, 
	pattern TEXT NOT NULL, 
	mode TEXT NOT NULL, 
	"check" TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	source_rollout TEXT, 
	instruction TEXT NOT NULL, 
	time TEXT, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, plans TEXT, "plan" TEXT, plan_revision BIGINT, 
	PRIMARY KEY (event)
);
CREATE TABLE task_states (
	alias TEXT NOT NULL, 
	task TEXT NOT NULL, 
	state TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	time TEXT, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, 
	PRIMARY KEY (alias, task)
);
CREATE TABLE tasks (
	alias TEXT NOT NULL, 
	task TEXT NOT NULL, 
	environment TEXT, 
	capability TEXT, 
	instruction TEXT, 
	gold_actions TEXT, 
	outputs TEXT NOT NULL, 
	reward_basis TEXT NOT NULL, 
	definition TEXT, 
	origin TEXT NOT NULL, 
	pattern TEXT, 
	source_rollout TEXT, 
	order_key TEXT NOT NULL, base TEXT, cycle TEXT, mode TEXT, verified TEXT, text_by TEXT, event TEXT, "offset" BIGINT, plans TEXT, "plan" TEXT, plan_revision BIGINT, 
	PRIMARY KEY (alias, task)
);
CREATE TABLE trajectory_verdicts (
	rollout TEXT NOT NULL, 
	alias TEXT NOT NULL, 
	base TEXT NOT NULL, 
	cycle TEXT, 
	task TEXT NOT NULL, 
	plans TEXT, 
	"plan" TEXT, 
	fault TEXT, 
	rule TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	opinion_by TEXT, 
	opinion TEXT, 
	opinion_reason TEXT, 
	agrees BOOLEAN, 
	trouble TEXT NOT NULL, 
	siblings TEXT NOT NULL, 
	time TEXT, 
	event_source TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, 
	PRIMARY KEY (rollout)
);
CREATE INDEX ix_adapters_alias ON adapters (alias, base);
CREATE INDEX ix_calls_alias ON calls (alias, started);
CREATE INDEX ix_calls_holdout ON calls (alias, started) WHERE holdout IS NOT NULL;
CREATE INDEX ix_calls_loose ON calls (session) WHERE rollout IS NULL;
CREATE INDEX ix_calls_session ON calls (session);
CREATE INDEX ix_calls_started ON calls (partition, event_source, started_sequence);
CREATE INDEX ix_dead_letters_rollout ON dead_letters (rollout) WHERE rollout IS NOT NULL;
CREATE INDEX ix_feedback_judged ON feedback (partition, event_source, sequence) WHERE success IS NOT NULL;
CREATE INDEX ix_feedback_session ON feedback (session);
CREATE INDEX ix_job_rounds_cycle ON job_rounds (cycle);
CREATE INDEX ix_jobs_open ON jobs ("offset") WHERE outcome IS NULL;
CREATE INDEX ix_learning_cycles_alias ON learning_cycles (alias, base, number);
CREATE INDEX ix_plan_sets_alias ON plan_sets (alias, base);
CREATE INDEX ix_rollouts_agent ON rollouts (alias, base, purpose, time);
CREATE INDEX ix_rollouts_counted ON rollouts (alias, base, purpose, round, success);
CREATE INDEX ix_rollouts_failures ON rollouts (alias, base, purpose, round, policy, trace_key) WHERE category IS NOT NULL;
CREATE INDEX ix_rollouts_judged ON rollouts (partition, event_source, sequence) WHERE session IS NOT NULL AND success IS NOT NULL;
CREATE INDEX ix_rollouts_round ON rollouts (round, alias, base);
CREATE INDEX ix_rollouts_session ON rollouts (session) WHERE session IS NOT NULL;
CREATE INDEX ix_rollouts_task ON rollouts (task_key, alias, base);
CREATE INDEX ix_rollouts_unread ON rollouts (partition, event_source, sequence) WHERE round IS NULL;
CREATE INDEX ix_serving_steps_event ON serving_steps (event);
CREATE INDEX ix_session_ends_session ON session_ends (session);
CREATE INDEX ix_task_rejections_cycle ON task_rejections (cycle);
CREATE INDEX ix_tasks_event ON tasks (event) WHERE event IS NOT NULL;
CREATE INDEX ix_trajectory_verdicts_task ON trajectory_verdicts (alias, task);
INSERT INTO alembic_version (version_num) VALUES ('0026');
