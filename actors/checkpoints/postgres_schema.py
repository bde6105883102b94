"""The tables of the PostgreSQL store, and its queries. ``umbel.`` stands for the schema that the URL names.

Ids and texts are ``bytea``: they hold any character, also NUL, and bytes of UTF-8 sort like characters whatever the database's
collation is. Ids may be longer than an index entry, so indexes hold their SHA-256 or their beginning.
"""

from __future__ import annotations

VERSION = 1
LOCK = 0x756D62656C  # "umbel": advisory locks of ours; shared while texts are referred to, exclusive while they are collected

# Not IF NOT EXISTS: that asks for the right to create schemas even where somebody else has made this one.
FIND_SCHEMA = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname || '.' = 'umbel.')"
CREATE_SCHEMA = "CREATE SCHEMA umbel.;"
CREATE = """
CREATE TABLE umbel.threads (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    thread_id bytea NOT NULL,
    newest bytea,
    position bigint NOT NULL DEFAULT 0,
    root bigint NOT NULL DEFAULT 0,
    token bigint NOT NULL DEFAULT 0,
    owner bytea,
    expires_at double precision NOT NULL DEFAULT 0,
    deleted_at double precision
);
CREATE UNIQUE INDEX threads_by_id ON umbel.threads (sha256(thread_id));
CREATE INDEX threads_in_order ON umbel.threads (substring(thread_id from 1 for 256));
CREATE TABLE umbel.checkpoints (
    thread bigint NOT NULL REFERENCES umbel.threads ON DELETE CASCADE,
    position bigint NOT NULL,
    checkpoint_id bytea NOT NULL,
    parent_id bytea,
    root bigint NOT NULL,
    base bigint NOT NULL,
    created_at double precision NOT NULL,
    metadata bytea NOT NULL,
    state bytea NOT NULL,
    PRIMARY KEY (thread, position)
);
CREATE UNIQUE INDEX checkpoints_by_id ON umbel.checkpoints (thread, sha256(checkpoint_id));
CREATE TABLE umbel.journal (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    thread bigint NOT NULL REFERENCES umbel.threads ON DELETE CASCADE,
    call_id bytea NOT NULL,
    phase text NOT NULL,
    entry bytea NOT NULL
);
CREATE UNIQUE INDEX journal_by_call ON umbel.journal (thread, sha256(call_id), phase);
CREATE TABLE umbel.texts (digest bytea PRIMARY KEY, content bytea NOT NULL);
CREATE TABLE umbel.refers (
    thread bigint NOT NULL REFERENCES umbel.threads ON DELETE CASCADE,
    digest bytea NOT NULL,
    PRIMARY KEY (thread, digest)
);
CREATE TABLE umbel.schema_version (version integer NOT NULL);
"""
# Not to_regclass: that would go on saying what it said before the lock.
FIND_VERSION = "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname || '.' || tablename = 'umbel.schema_version')"
READ_VERSION = "SELECT max(version) FROM umbel.schema_version"
WRITE_VERSION = "INSERT INTO umbel.schema_version VALUES (%s)"

SAFE_SETTINGS = ("fsync", "full_page_writes", "synchronous_commit")
LOSSES = ("a power cut may destroy the database", "a power cut may destroy the database", "a power cut loses the last saves")
ARE_OFF = "SELECT " + ", ".join(f"current_setting('{name}') = 'off'" for name in SAFE_SETTINGS)
NOW = "SELECT extract(epoch FROM clock_timestamp())::double precision"
BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
EXCLUDE = "SELECT pg_advisory_xact_lock(%s)"
SHARE = "SELECT pg_advisory_xact_lock_shared(%s)"

_THREAD = "SELECT number, thread_id, newest, position, root, token, owner, expires_at, deleted_at FROM umbel.threads"
ADD_THREADS = "INSERT INTO umbel.threads (thread_id) SELECT unnest(%s::bytea[]) ON CONFLICT (sha256(thread_id)) DO NOTHING"
LOCK_THREADS = (
    f"{_THREAD} WHERE sha256(thread_id) IN (SELECT sha256(unnest(%s::bytea[]))) ORDER BY sha256(thread_id) FOR UPDATE"
)
READ_THREAD = f"{_THREAD} WHERE sha256(thread_id) = sha256(%s)"
LOCK_NUMBER = f"{_THREAD} WHERE number = %s FOR UPDATE"
NUMBERS = "SELECT number FROM umbel.threads WHERE number > %s ORDER BY number LIMIT 500"
KNOWN = (
    "SELECT c.thread, c.checkpoint_id FROM umbel.checkpoints c JOIN unnest(%s::bigint[], %s::bytea[]) AS w (thread, id)"
    " ON c.thread = w.thread AND sha256(c.checkpoint_id) = sha256(w.id)"
)
INSERT = (
    "INSERT INTO umbel.checkpoints (thread, position, checkpoint_id, parent_id, root, base, created_at, metadata, state)"
    " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
ADVANCE = "UPDATE umbel.threads SET newest = %s, position = %s, root = %s, deleted_at = NULL WHERE number = %s"
SETTLE = "DELETE FROM umbel.journal WHERE thread = ANY(%s)"
NOTE = (
    "INSERT INTO umbel.journal (thread, call_id, phase, entry) VALUES (%s, %s, %s, %s)"
    " ON CONFLICT (thread, sha256(call_id), phase) DO NOTHING"
)
PUT_TEXT = "INSERT INTO umbel.texts (digest, content) VALUES (%s, %s) ON CONFLICT DO NOTHING"
REFER = "INSERT INTO umbel.refers (thread, digest) VALUES (%s, %s) ON CONFLICT DO NOTHING"

_FACTS = "SELECT position, checkpoint_id, parent_id, root, created_at, metadata FROM umbel.checkpoints WHERE thread = %s"
FACT_AT = f"{_FACTS} AND position = %s"
FACT_OF = f"{_FACTS} AND sha256(checkpoint_id) = sha256(%s)"
HISTORY = f"{_FACTS} ORDER BY position DESC LIMIT %s"
CHAIN = "SELECT base, state FROM umbel.checkpoints WHERE thread = %s AND position BETWEEN %s AND %s ORDER BY position"
JOURNAL = "SELECT entry FROM umbel.journal WHERE thread = %s ORDER BY number"
TEXTS = (
    "SELECT t.digest, t.content FROM umbel.texts t JOIN umbel.refers r USING (digest)"
    " WHERE r.thread = %s AND t.digest = ANY(%s)"
)

SET_LEASE = "UPDATE umbel.threads SET token = %s, owner = %s, expires_at = %s, deleted_at = %s WHERE number = %s"
LIST = (
    "SELECT t.thread_id, t.newest, held.count, held.size, first.created_at, c.created_at, c.metadata,"
    " CASE WHEN t.expires_at > extract(epoch FROM clock_timestamp()) THEN t.owner END"
    " FROM umbel.threads t JOIN umbel.checkpoints c ON c.thread = t.number AND c.position = t.position"
    " CROSS JOIN LATERAL (SELECT count(*) AS count, sum(octet_length(state)) AS size, min(position) AS position"
    "   FROM umbel.checkpoints WHERE thread = t.number) held"
    " JOIN umbel.checkpoints first ON first.thread = t.number AND first.position = held.position"
    " WHERE substring(t.thread_id from 1 for 256) >= substring(%(after)s::bytea from 1 for 256)"
    "   AND (t.thread_id > %(after)s OR %(first)s)"
    "   AND t.thread_id >= %(prefix)s AND substring(t.thread_id from 1 for octet_length(%(prefix)s)) = %(prefix)s"
    " ORDER BY substring(t.thread_id from 1 for 256), t.thread_id LIMIT %(limit)s"
)

SIZE = "SELECT count(*), coalesce(sum(octet_length(state)), 0) FROM umbel.checkpoints WHERE thread = %s"
NEWEST_AT = "SELECT created_at FROM umbel.checkpoints WHERE thread = %s AND position = %s"
EMPTY = (
    "DELETE FROM umbel.checkpoints WHERE thread = %s",
    "DELETE FROM umbel.journal WHERE thread = %s",
    "DELETE FROM umbel.refers WHERE thread = %s",
    "UPDATE umbel.threads SET newest = NULL, position = 0, root = 0 WHERE number = %s",
)
OLDEST_KEPT = "SELECT position FROM umbel.checkpoints WHERE thread = %s ORDER BY position DESC OFFSET %s LIMIT 1"
FIRST = "SELECT coalesce(min(position), 1) FROM umbel.checkpoints WHERE thread = %s"
DROP_BEHIND = "DELETE FROM umbel.checkpoints WHERE thread = %s AND position > %s"
DROP_BEFORE = "DELETE FROM umbel.checkpoints WHERE thread = %s AND position < %s"
MAKE_SNAPSHOT = "UPDATE umbel.checkpoints SET state = %s, base = 0, parent_id = NULL WHERE thread = %s AND position = %s"
MAKE_ROOT = "UPDATE umbel.checkpoints SET root = %s WHERE thread = %s AND root < %s"
RAISE_ROOT = "UPDATE umbel.threads SET root = greatest(root, %s) WHERE number = %s"
UNREFER = (
    "DELETE FROM umbel.refers r WHERE r.thread = %s AND NOT EXISTS"
    " (SELECT FROM umbel.checkpoints c WHERE c.thread = r.thread AND position(r.digest IN c.state) > 0)"
)
FORGET = (
    "DELETE FROM umbel.threads t WHERE number = %s AND position = 0"
    " AND NOT EXISTS (SELECT FROM umbel.journal j WHERE j.thread = t.number)"
)
FREE_TEXTS = (
    "DELETE FROM umbel.texts t WHERE NOT EXISTS (SELECT FROM umbel.refers r WHERE r.digest = t.digest)"
    " RETURNING octet_length(content)"
)
